// Answers and undos that the site has not acknowledged yet. Each is stored under its own localStorage key, so that it
// survives a reload or a closed tab, and tabs never overwrite each other's. Sending one twice is harmless, because the
// site recognizes its UUID.

import { Away, Failing, OtherAccount, Refused, SignedOut, Stuck } from "./api.js";
import { Emitter } from "./emitter.js";

/** @import { Answer, Answered, Api, Undone } from "./api.js" */

const FIRST_WAIT_MS = 1_000;
const LONGEST_WAIT_MS = 30_000;
// After this many stuck entries in a row, wait before trying the rest: probably all of them are blocked.
const MOST_STUCK = 3;

/**
 * @typedef {{ kind: "label", experiment: string } & Answer} LabelEntry
 * @typedef {{ kind: "undo", experiment: string, uuid: string, label: string }} UndoEntry
 * @typedef {LabelEntry | UndoEntry} Entry
 * @typedef {Entry & { at: number }} KeptEntry an entry with its time, in ms since the epoch
 * @typedef {{ kind: "label", entry: LabelEntry, reply: Answered }} SavedLabel
 * @typedef {{ kind: "undo", entry: UndoEntry, reply: Undone }} SavedUndo
 * @typedef {SavedLabel | SavedUndo} Saved
 */

/**
 * Queue of unsaved answers and undos, which retries until the site has them.
 *
 * Events: `added` (here or in another tab), `change` (the unsaved entries changed), `saved`, `elsewhere` (another tab
 * saved or discarded an entry), `refused` (rejected by the site), `stuck` (blocked on the way, for example by a proxy;
 * other entries are sent first from now on), `away` (the site can't be reached, or is failing), `stopped` (signed out or a different
 * account: nothing is sent until `flush` is called again).
 * @extends {Emitter<{
 *   added: [Entry], change: [], saved: [Saved], elsewhere: [], refused: [Entry, Refused], stuck: [Entry, Stuck],
 *   away: [boolean], stopped: [SignedOut | OtherAccount],
 * }>}
 */
export class Outbox extends Emitter {
  #api;
  #prefix;
  #sending = false;
  /**
   * Number of failures and last reason for each stuck entry, by UUID.
   * @type {Map<string, { times: number, reason: string }>}
   */
  #stuck = new Map();
  /** True after the site could not be reached, until an entry is sent successfully. */
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
      // Use the entry in the event: the other tab may already have sent it and removed it from storage.
      if (newValue) this.emit("added", JSON.parse(newValue));
      this.emit("change");
      if (!newValue) this.emit("elsewhere");
    });
    addEventListener("online", () => this.flush());
  }

  /** All unsaved entries of this account, for any experiment, oldest first. @returns {KeptEntry[]} */
  get entries() {
    return memory
      .keys()
      .filter((key) => key.startsWith(this.#prefix))
      .map((key) => memory.get(key))
      .filter((entry) => entry !== null)
      .sort((a, b) => a.at - b.at);
  }

  /** Return the unsaved entries of one experiment. @param {string} experiment */
  of(experiment) {
    return this.entries.filter((entry) => entry.experiment === experiment);
  }

  /** UUIDs of the leases whose answers are unsaved. */
  get leases() {
    return this.entries.filter((entry) => entry.kind === "label").map((entry) => entry.lease);
  }

  /** True if an unsaved entry is only in memory and would be lost with this page. */
  get volatile() {
    return [...memory.map.keys()].some((key) => key.startsWith(this.#prefix));
  }

  /** Store an entry, then start sending. Returns once the entry is stored. @param {Entry} entry */
  put(entry) {
    const last = this.entries.at(-1)?.at ?? 0;
    memory.set(this.#prefix + entry.uuid, { ...entry, at: Math.max(Date.now(), last + 1) });
    this.emit("added", entry);
    this.emit("change");
    this.flush();
  }

  /** Return why an entry is stuck, or undefined if it isn't. @param {Entry} entry */
  obstacle(entry) {
    return this.#stuck.get(entry.uuid)?.reason;
  }

  /** Delete an entry without sending it. @param {Entry} entry */
  discard(entry) {
    this.#forget(entry);
  }

  /** Send all entries now, oldest first. */
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

  /** Return the next entry to send: stuck ones last, an undo only after its answer. @param {Set<string>} tried */
  #next(tried) {
    const entries = this.entries;
    const given = new Set(entries.map(({ uuid }) => uuid));
    const ready = entries.filter((each) => !tried.has(each.uuid) && !(each.kind === "undo" && given.has(each.label)));
    const times = (/** @type {Entry} */ { uuid }) => this.#stuck.get(uuid)?.times ?? 0;
    return ready.sort((a, b) => times(a) - times(b) || a.at - b.at)[0];
  }

  /** Send an entry. Resolves to false if it is stuck. @param {Entry} entry */
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
      // The site rejected it for good; keeping it would block all later entries.
      this.#forget(entry);
      this.emit("refused", entry, error);
      return true;
    }
  }

  /** @param {Entry} entry @returns {Promise<Saved>} */
  async #deliver(entry) {
    const { uuid } = entry;
    if (entry.kind === "undo") return { kind: "undo", entry, reply: await this.#api.undo(entry.label, { uuid }) };
    const { lease, choice, response_ms, shown_ms, reason } = entry;
    const answer = { uuid, lease, choice, response_ms, shown_ms, reason };
    return { kind: "label", entry, reply: await this.#api.label(answer) };
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
    this.emit("away", error instanceof Failing);
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

// localStorage, or a map if the browser forbids it or it is full; answers in the map are lost with the page.
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
      // The entry was only in the map.
    }
  },
};
