// Answers that the site has not acknowledged yet. They live in localStorage, one key each, so that they survive a
// reload and a closed tab, and so that two tabs never overwrite each other's. Sending one twice is harmless: the site
// knows each by its UUID.

import { Away, OtherAccount, Refused, SignedOut, Stuck } from "./api.js";

const FIRST_WAIT_MS = 1_000;
const LONGEST_WAIT_MS = 30_000;
// So many entries in a row that something refuses: it may be all of them, so the rest waits for the next time.
const MOST_STUCK = 3;

/**
 * Events: `added` {entry} (here or in another tab), `change` (what is unsaved has changed), `saved` {entry, reply},
 * `elsewhere` (another tab has something saved), `refused` {entry, error}, `stuck` {entry, error} (something on the way
 * refuses this one: later ones go first from now on), `away`, `stopped` {error} (signed out or another account: nothing
 * is sent until `flush` is called again).
 *
 * An entry is {uuid, at, kind: "label", experiment, lease, choice, response_ms, shown_ms} or
 * {uuid, at, kind: "undo", experiment, label}.
 */
export class Outbox extends EventTarget {
  #api;
  #prefix;
  #sending = false;
  /** How often, and why last, something refused an entry; by its UUID. */
  #stuck = new Map();
  /** True from a failure to send until something is sent. */
  away = false;
  #timer = 0;
  #wait = FIRST_WAIT_MS;

  constructor(api) {
    super();
    this.#api = api;
    this.#prefix = `rl-teacher.outbox.${api.account}.`;
    addEventListener("storage", ({ key, newValue }) => {
      if (!key?.startsWith(this.#prefix)) return;
      // The entry comes with the event: in the storage it may be gone already, sent by the other tab.
      if (newValue) this.#emit("added", { entry: JSON.parse(newValue) });
      this.#emit("change");
      if (!newValue) this.#emit("elsewhere");
    });
    addEventListener("online", () => this.flush());
  }

  /** Every unsaved entry of this account, in the order given, whatever its experiment. */
  get entries() {
    return memory
      .keys()
      .filter((key) => key.startsWith(this.#prefix))
      .map((key) => memory.get(key))
      .filter(Boolean)
      .sort((a, b) => a.at - b.at);
  }

  /** Those of one experiment. */
  of(experiment) {
    return this.entries.filter((entry) => entry.experiment === experiment);
  }

  /** The leases whose answers are unsaved. */
  get leases() {
    return this.entries.filter((entry) => entry.kind === "label").map((entry) => entry.lease);
  }

  /** True while something is unsaved that would not survive this page. */
  get volatile() {
    return [...memory.map.keys()].some((key) => key.startsWith(this.#prefix));
  }

  /** Keep an entry, then send it. Returns once it is kept. */
  put(entry) {
    const last = this.entries.at(-1)?.at ?? 0;
    memory.set(this.#prefix + entry.uuid, { ...entry, at: Math.max(Date.now(), last + 1) });
    this.#emit("added", { entry });
    this.#emit("change");
    this.flush();
  }

  /** Why an entry is not sent although the site is there; undefined for others. */
  obstacle(entry) {
    return this.#stuck.get(entry.uuid)?.reason;
  }

  /** Give an entry up. */
  discard(entry) {
    this.#forget(entry);
  }

  /** Send everything, oldest first, now. */
  async flush() {
    if (this.#sending) return;
    clearTimeout(this.#timer);
    this.#sending = true;
    const tried = new Set();
    try {
      let inARow = 0;
      for (let entry; inARow < MOST_STUCK && (entry = this.#next(tried)); tried.add(entry.uuid)) {
        inARow = (await this.#send(entry)) ? 0 : inARow + 1;
      }
      if (tried.size && this.entries.length) this.#again();
    } catch (error) {
      this.#later(error);
    } finally {
      this.#sending = false;
    }
  }

  /** What is stuck comes last; what takes an answer back comes after that answer. */
  #next(tried) {
    const entries = this.entries;
    const ready = entries.filter(({ uuid, label }) => !tried.has(uuid) && !entries.some((each) => each.uuid === label));
    const times = ({ uuid }) => this.#stuck.get(uuid)?.times ?? 0;
    return ready.sort((a, b) => times(a) - times(b) || a.at - b.at)[0];
  }

  /** Returns false where something on the way refuses it. */
  async #send(entry) {
    const { uuid, kind, lease, choice, response_ms, shown_ms, label } = entry;
    try {
      const reply =
        kind === "undo"
          ? await this.#api.undo(label, { uuid })
          : await this.#api.label({ uuid, lease, choice, response_ms, shown_ms });
      this.#forget(entry);
      this.#wait = FIRST_WAIT_MS;
      this.away = false;
      this.#emit("saved", { entry, reply });
      return true;
    } catch (error) {
      if (error instanceof Stuck) {
        this.#stuck.set(uuid, { times: (this.#stuck.get(uuid)?.times ?? 0) + 1, reason: error.message });
        this.#emit("stuck", { entry, error });
        this.#emit("change");
        return false;
      }
      if (!(error instanceof Refused)) throw error;
      // The site has spoken: keeping it would hold up every later answer for ever.
      this.#forget(entry);
      this.#emit("refused", { entry, error });
      return true;
    }
  }

  #later(error) {
    this.away = false;
    if (error instanceof SignedOut || error instanceof OtherAccount) {
      this.#emit("stopped", { error });
      return;
    }
    if (!(error instanceof Away)) throw error;
    this.away = true;
    this.#emit("away");
    this.#again();
  }

  #again() {
    this.#timer = setTimeout(() => this.flush(), this.#wait * (0.75 + Math.random() / 2));
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
  }

  #forget(entry) {
    memory.delete(this.#prefix + entry.uuid);
    this.#stuck.delete(entry.uuid);
    this.#emit("change");
  }

  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

// localStorage, or a map where the browser forbids or has filled it: then answers live as long as the page.
const memory = {
  map: new Map(),
  keys() {
    try {
      return [...new Set([...Object.keys(localStorage), ...this.map.keys()])];
    } catch {
      return [...this.map.keys()];
    }
  },
  get(key) {
    if (this.map.has(key)) return this.map.get(key);
    try {
      return JSON.parse(localStorage.getItem(key));
    } catch {
      return null;
    }
  },
  set(key, value) {
    try {
      localStorage.setItem(key, JSON.stringify(value));
    } catch {
      this.map.set(key, value);
    }
  },
  delete(key) {
    this.map.delete(key);
    try {
      localStorage.removeItem(key);
    } catch {
      // It was only in the map.
    }
  },
};
