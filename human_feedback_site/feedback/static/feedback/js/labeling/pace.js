// Time per answer, reminders to take a break, and the offer to finish after a long wait.

const TIMES_KEPT = 30;
const LEAST_INTERVALS = 3;
const STRETCH_MS = 25 * 60_000;
// No answer for this long counts as a break.
const PAUSE_MS = 3 * 60_000;
// After this long with nothing to judge, the labeler may finish.
const EMPTY_MS = 3 * 60_000;

export class Pace {
  #key;
  /** @type {number[]} */
  #times;
  /** @type {number} */
  #since;

  /** @param {string} key sessionStorage key, so that the data survives a reload */
  constructor(key) {
    this.#key = key;
    const { times = [], since = 0 } = read(key);
    this.#times = times;
    this.#since = since;
  }

  /** Record an answer given now. Returns true if it is time to suggest a break. */
  answered() {
    const now = Date.now();
    if (now - (this.#times.at(-1) ?? 0) > PAUSE_MS) this.#since = now;
    this.#times = [...this.#times, now].slice(-TIMES_KEPT);
    const tired = now - this.#since >= STRETCH_MS;
    if (tired) this.#since = now;
    write(this.#key, { times: this.#times, since: this.#since });
    return tired;
  }

  /** Median time in ms between recent answers, without breaks; null if there are too few to tell. */
  get msEach() {
    const times = this.#times;
    const intervals = times.slice(1).map((time, at) => time - times[at]).filter((ms) => ms <= PAUSE_MS);
    if (intervals.length < LEAST_INTERVALS) return null;
    return intervals.sort((one, other) => one - other)[Math.floor(intervals.length / 2)];
  }
}

/** Timer for how long a labeler has had nothing to judge. */
export class Patience {
  #over;
  #timer = 0;

  /** @param {(isOver: boolean) => void} over called with true after a long wait, and with false when the wait ends */
  constructor(over) {
    this.#over = over;
  }

  /** Start the timer, unless it is running already. */
  wait() {
    this.#timer ||= setTimeout(() => this.#over(true), EMPTY_MS);
  }

  end() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#over(false);
  }
}

/** @param {string} key */
function read(key) {
  try {
    return JSON.parse(sessionStorage.getItem(key) ?? "null") ?? {};
  } catch {
    return {}; // storage is forbidden, so the data lasts only as long as the page
  }
}

/** @param {string} key @param {{ times: number[], since: number }} value */
function write(key, value) {
  try {
    sessionStorage.setItem(key, JSON.stringify(value));
  } catch {
    // Storage is forbidden, so the data lasts only as long as the page.
  }
}
