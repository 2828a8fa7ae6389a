// How fast the answers come, and when a pause would do good.

const WINDOW_MS = 5 * 60_000;
const LEAST_MS = 30_000;
const LEAST_ANSWERS = 3;
const STRETCH_MS = 25 * 60_000;
// Whoever has not answered for so long has had a pause.
const PAUSE_MS = 3 * 60_000;
// With nothing to judge for so long, nobody has to stay.
const EMPTY_MS = 3 * 60_000;

export class Pace {
  #key;
  /** @type {number[]} */
  #times;
  /** @type {number} */
  #since;

  /** @param {string} key under which a reload of this tab finds it */
  constructor(key) {
    this.#key = key;
    const { times = [], since = 0 } = read(key);
    this.#times = times;
    this.#since = since;
  }

  /** An answer was given now. Returns true where a pause should be suggested. */
  answered() {
    const now = Date.now();
    if (now - (this.#times.at(-1) ?? 0) > PAUSE_MS) this.#since = now;
    this.#times = [...this.#times.filter((time) => now - time < WINDOW_MS), now];
    const tired = now - this.#since >= STRETCH_MS;
    if (tired) this.#since = now;
    write(this.#key, { times: this.#times, since: this.#since });
    return tired;
  }

  /** Answers a minute of late; null while there are too few to tell. */
  get perMinute() {
    const now = Date.now();
    const recent = this.#times.filter((time) => now - time < WINDOW_MS);
    if (recent.length < LEAST_ANSWERS) return null;
    return (recent.length * 60_000) / Math.max(now - recent[0], LEAST_MS);
  }
}

/** How long somebody has had nothing to judge. */
export class Patience {
  #over;
  #timer = 0;

  /** @param {(isOver: boolean) => void} over called when it has been long enough, and when it ends */
  constructor(over) {
    this.#over = over;
  }

  /** There is nothing, or still nothing. */
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
    return {}; // it lives as long as the page
  }
}

/** @param {string} key @param {{ times: number[], since: number }} value */
function write(key, value) {
  try {
    sessionStorage.setItem(key, JSON.stringify(value));
  } catch {
    // It lives as long as the page.
  }
}
