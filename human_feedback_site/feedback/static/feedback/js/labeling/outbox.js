// Answers that the site has not acknowledged yet. They live in localStorage, one key each, so that they survive a
// reload and a closed tab, and so that two tabs never overwrite each other's. Sending one twice is harmless: the site
// knows each by its UUID.

import { Away, OtherAccount, Refused, SignedOut, Stuck } from "./api.js";
import { Emitter } from "./emitter.js";

/** @import { Answer, Answered, Api, Undone } from "./api.js" */

const FIRST_WAIT_MS = 1_000;
const LONGEST_WAIT_MS = 30_000;
// So many entries in a row that something refuses: it may be all of them, so the rest waits for the next time.
const MOST_STUCK = 3;

/**
 * @typedef {{ kind: "label", experiment: string } & Answer} LabelEntry
 * @typedef {{ kind: "undo", experiment: string, uuid: string, label: string }} UndoEntry
 * @typedef {LabelEntry | UndoEntry} Entry
 * @typedef {Entry & { at: number }} KeptEntry one with the time it was given at
 * @typedef {{ kind: "label", entry: LabelEntry, reply: Answered }} SavedLabel
 * @typedef {{ kind: "undo", entry: UndoEntry, reply: Undone }} SavedUndo
 * @typedef {SavedLabel | SavedUndo} Saved
 */

/**
 * Events: `added` (here or in another tab), `change` (what is unsaved has changed), `saved`, `elsewhere` (another tab
 * has something saved), `refused`, `stuck` (something on the way refuses this one: later ones go first from now on),
 * `away`, `stopped` (signed out or another account: nothing is sent until `flush` is called again).
 * @extends {Emitter<{
 *   added: [Entry], change: [], saved: [Saved], elsewhere: [], refused: [Entry, Refused], stuck: [Entry, Stuck],
 *   away: [], stopped: [SignedOut | OtherAccount],
 * }>}
 */
export class Outbox extends Emitter {
  #api;
  #prefix;
  #sending = false;
  /**
   * How often, and why last, something refused an entry; by its UUID.
   * @type {Map<string, { times: number, reason: string }>}
   */
  #stuck = new Map();
  /** True from a failure to send until something is sent. */
  away = false;
  #timer = 0;
  #wait = FIRST_WAIT_MS;

  /** @param {Api} api */
  constructor(api) {
    super();
    this.#api = api;
    this.#prefix = `rl-teacher.outbox.${api.account}.`;
    addEventListener("storage", ({ key, newValue }) => {
      if (!key?.startsWith(this.#prefix)) return;
      // The entry comes with the event: in the storage it may be gone already, sent by the other tab.
      if (newValue) this.emit("added", JSON.parse(newValue));
      this.emit("change");
      if (!newValue) this.emit("elsewhere");
    });
    addEventListener("online", () => this.flush());
  }

  /** Every unsaved entry of this account, in the order given, whatever its experiment. @returns {KeptEntry[]} */
  get entries() {
    return memory
      .keys()
      .filter((key) => key.startsWith(this.#prefix))
      .map((key) => memory.get(key))
      .filter((entry) => entry !== null)
      .sort((a, b) => a.at - b.at);
  }

  /** Those of one experiment. @param {string} experiment */
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

  /** Keep an entry, then send it. Returns once it is kept. @param {Entry} entry */
  put(entry) {
    const last = this.entries.at(-1)?.at ?? 0;
    memory.set(this.#prefix + entry.uuid, { ...entry, at: Math.max(Date.now(), last + 1) });
    this.emit("added", entry);
    this.emit("change");
    this.flush();
  }

  /** Why an entry is not sent although the site is there; undefined for others. @param {Entry} entry */
  obstacle(entry) {
    return this.#stuck.get(entry.uuid)?.reason;
  }

  /** Give an entry up. @param {Entry} entry */
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

  /** What is stuck comes last; what takes an answer back comes after that answer. @param {Set<string>} tried */
  #next(tried) {
    const entries = this.entries;
    const given = new Set(entries.map(({ uuid }) => uuid));
    const ready = entries.filter((each) => !tried.has(each.uuid) && !(each.kind === "undo" && given.has(each.label)));
    const times = (/** @type {Entry} */ { uuid }) => this.#stuck.get(uuid)?.times ?? 0;
    return ready.sort((a, b) => times(a) - times(b) || a.at - b.at)[0];
  }

  /** Returns false where something on the way refuses it. @param {Entry} entry */
  async #send(entry) {
    const { uuid } = entry;
    try {
      const saved = await this.#deliver(entry);
      this.#forget(entry);
      this.#wait = FIRST_WAIT_MS;
      this.away = false;
      this.emit("saved", saved);
      return true;
    } catch (error) {
      if (error instanceof Stuck) {
        this.#stuck.set(uuid, { times: (this.#stuck.get(uuid)?.times ?? 0) + 1, reason: error.message });
        this.emit("stuck", entry, error);
        this.emit("change");
        return false;
      }
      if (!(error instanceof Refused)) throw error;
      // The site has spoken: keeping it would hold up every later answer for ever.
      this.#forget(entry);
      this.emit("refused", entry, error);
      return true;
    }
  }

  /** @param {Entry} entry @returns {Promise<Saved>} */
  async #deliver(entry) {
    const { uuid } = entry;
    if (entry.kind === "undo") return { kind: "undo", entry, reply: await this.#api.undo(entry.label, { uuid }) };
    const { lease, choice, response_ms, shown_ms } = entry;
    return { kind: "label", entry, reply: await this.#api.label({ uuid, lease, choice, response_ms, shown_ms }) };
  }

  /** @param {unknown} error */
  #later(error) {
    this.away = false;
    if (error instanceof SignedOut || error instanceof OtherAccount) {
      this.emit("stopped", error);
      return;
    }
    if (!(error instanceof Away)) throw error;
    this.away = true;
    this.emit("away");
    this.#again();
  }

  #again() {
    this.#timer = setTimeout(() => this.flush(), this.#wait * (0.75 + Math.random() / 2));
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
  }

  /** @param {Entry} entry */
  #forget(entry) {
    memory.delete(this.#prefix + entry.uuid);
    this.#stuck.delete(entry.uuid);
    this.emit("change");
  }
}

// localStorage, or a map where the browser forbids or has filled it: then answers live as long as the page.
const memory = {
  /** @type {Map<string, KeptEntry>} */
  map: new Map(),
  keys() {
    try {
      return [...new Set([...Object.keys(localStorage), ...this.map.keys()])];
    } catch {
      return [...this.map.keys()];
    }
  },
  /** @param {string} key @returns {KeptEntry | null} */
  get(key) {
    const held = this.map.get(key);
    if (held) return held;
    try {
      return JSON.parse(localStorage.getItem(key) ?? "null");
    } catch {
      return null;
    }
  },
  /** @param {string} key @param {KeptEntry} value */
  set(key, value) {
    try {
      localStorage.setItem(key, JSON.stringify(value));
    } catch {
      this.map.set(key, value);
    }
  },
  /** @param {string} key */
  delete(key) {
    this.map.delete(key);
    try {
      localStorage.removeItem(key);
    } catch {
      // It was only in the map.
    }
  },
};
