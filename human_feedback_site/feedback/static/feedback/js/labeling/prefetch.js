// Prefetches the next questions: leases them, downloads their clips completely, so that expired links and connection gaps
// don't matter, and decodes the first few, so that the next question appears immediately.

import { Downloads } from "./downloads.js";
import { Emitter } from "./emitter.js";
import { KINDS } from "./kinds.js";
import { Question } from "./player.js";

/** @import { Api, Lease, Leases } from "./api.js" */

const AHEAD = 8;
// On a slow connection, don't lease more questions than can be downloaded in this time, and at first only a few.
const AHEAD_MS = 60_000;
const AHEAD_AT_FIRST = 2;
const MOST_LEASES = 10; // the most that the site grants at once
const DECODED = 3;
const LINK_ATTEMPTS = 2;
// Limit on ready questions, which grow beyond AHEAD when several answers are undone in a row.
const MOST_READY = 12;
const REST_EVERY_MS = 1_000;

/**
 * Leases of this page and their questions. Leases are identified by UUID unless stated otherwise.
 *
 * Events: `reply` (response to a request for leases), `ready` (a question can be taken), `lost` (the lease on screen was
 * lost), `failed` (a request for leases failed), `slow` (clips can't be fetched; retries continue), `rest` (estimated
 * time in ms until the next question is downloaded; null if not known).
 * @extends {Emitter<{ reply: [Leases], ready: [], lost: [], failed: [unknown], slow: [], rest: [number | null] }>}
 */
export class Prefetch extends Emitter {
  #api;
  #pending;
  #downloads = new Downloads();
  #restAt = 0;
  /** @type {Question[]} */
  #ready = [];
  /** @type {Map<string, Promise<Question | null>>} */
  #loading = new Map();
  /** @type {Set<string>} */
  #answered = new Set();
  /** @type {Map<string, number>} */
  #badLinks = new Map();
  /** @type {Promise<void> | null} */
  #asking = null;
  #again = false;
  /** The lease on screen. @type {string | null} */
  shown = null;
  /** True after the first response to a request for leases. */
  asked = false;

  /** @param {Api} api @param {() => string[]} pending returns the leases whose answers are unsaved */
  constructor(api, pending) {
    super();
    this.#api = api;
    this.#pending = pending;
    this.#downloads.on("slow", () => this.emit("slow"));
    this.#downloads.on("moved", () => this.#tellRest());
  }

  /** True while clips are arriving. */
  get flowing() {
    return this.#downloads.flowing;
  }

  /** True if the connection is so slow that nothing else should use it. */
  get slow() {
    return this.#downloads.slow;
  }

  #tellRest() {
    if (performance.now() - this.#restAt < REST_EVERY_MS) return;
    this.#restAt = performance.now();
    this.emit("rest", this.#downloads.restMs);
  }

  /** Number of questions to lease in addition to the one on screen. */
  get #ahead() {
    const { questionMs } = this.#downloads;
    if (questionMs === null) return AHEAD_AT_FIRST;
    return Math.max(1, Math.min(AHEAD, Math.floor(AHEAD_MS / questionMs)));
  }

  get ready() {
    return this.#ready.length;
  }

  /** Number of questions that are ready, or are being fetched or decoded. */
  get coming() {
    return this.#loading.size + this.#ready.length;
  }

  /** Take the next ready question for the screen; null if there is none. */
  take() {
    const question = this.#ready[0]?.decoded ? this.#ready.shift() : undefined;
    this.shown = question?.lease ?? null;
    this.#decodeNext();
    return question ?? null;
  }

  /**
   * Put a question on screen out of turn; the current one comes next.
   * @param {Question} question
   * @param {Question | null} current
   */
  interrupt(question, current) {
    if (current) {
      current.rewind();
      this.#ready.unshift(current);
    }
    // The leases of dropped questions stay valid; the site returns them again when there is room.
    for (const far of this.#ready.splice(MOST_READY)) far.release();
    for (const far of this.#ready.slice(DECODED)) if (far.decoded) far.release();
    this.shown = question.lease;
  }

  /** Never show this lease again: it was answered, here or in another tab. @param {string} lease */
  answered(lease) {
    this.#answered.add(lease);
    this.#drop(lease);
  }

  /** Return the question of an undone answer, or null if its clips can't be fetched now. @param {Lease} lease */
  async recall(lease) {
    this.#answered.delete(lease.uuid);
    const question =
      this.#ready.find((each) => each.lease === lease.uuid) ??
      (await (this.#loading.get(lease.uuid) ?? this.#load(lease, true)));
    this.#ready = this.#ready.filter((each) => each !== question);
    return (await question?.decode()) ?? null;
  }

  /**
   * Renew the leases and request missing ones. Calls during a running request cause only one more request.
   * @returns {Promise<void>}
   */
  refill() {
    if (this.#asking) {
      this.#again = true;
      return this.#asking;
    }
    this.#asking = this.#ask().finally(() => {
      this.#asking = null;
      if (this.#again) {
        this.#again = false;
        this.refill();
      }
    });
    return this.#asking;
  }

  async #ask() {
    const unsaved = this.#pending();
    const ours = [this.shown, ...this.#ready.map((question) => question.lease), ...this.#loading.keys()];
    const held = ours.filter((lease) => lease !== null);
    const count = Math.min(MOST_LEASES, 1 + this.#ahead + unsaved.length);
    try {
      const reply = await this.#api.leases({ count, held, shown: this.shown, kinds: Object.keys(KINDS) });
      this.asked = true;
      for (const uuid of reply.lost) this.#drop(uuid);
      for (const lease of reply.leases) this.#add(lease);
      this.emit("reply", reply);
      if (this.shown && reply.lost.includes(this.shown)) this.emit("lost");
    } catch (error) {
      this.emit("failed", error);
    }
  }

  /** @param {string} lease */
  #knows(lease) {
    return lease === this.shown || this.#loading.has(lease) || this.#ready.some((question) => question.lease === lease);
  }

  /** @param {Lease} lease */
  async #add(lease) {
    if (this.#knows(lease.uuid) || this.#answered.has(lease.uuid)) return;
    const question = await this.#load(lease);
    if (!question) return;
    this.#ready.push(question);
    await this.#decodeNext();
  }

  /** Decode the first few questions; emits `ready` once the very next one is decoded. */
  async #decodeNext() {
    await Promise.all(this.#ready.slice(0, DECODED).map((question) => this.#decode(question)));
  }

  /** @param {Question} question */
  async #decode(question) {
    if (question.decoded) return;
    await question.decode();
    if (this.#ready[0]?.decoded) this.emit("ready");
  }

  /**
   * Resolve to the question of a lease; null if the lease was dropped meanwhile, or is retried later with new links.
   * @param {Lease} lease
   * @param {boolean} [urgent]
   */
  #load(lease, urgent) {
    /** @type {Promise<Question | null>} */
    const loading = this.#prepare(lease, urgent).then((question) => {
      const wanted = this.#loading.get(lease.uuid) === loading;
      if (wanted) this.#loading.delete(lease.uuid);
      else question?.release();
      return wanted ? question : null;
    });
    this.#loading.set(lease.uuid, loading);
    return loading;
  }

  /** @param {Lease} lease @param {boolean} [urgent] */
  async #prepare({ uuid, comparison, kind, items }, urgent) {
    await null; // the lease must be in #loading first
    const isWanted = () => this.#loading.has(uuid);
    this.#downloads.clips = items.length;
    const blobs = await Promise.all(items.map(({ url }) => this.#downloads.fetch(url, isWanted, urgent)));
    if (blobs.includes(null) && this.#worthNewLinks(comparison)) return null;
    return new Question(uuid, kind, blobs);
  }

  /**
   * Return true if new links are worth a try. The first failure may be an expired link; after a second one the clip is
   * considered missing.
   * @param {string} comparison
   */
  #worthNewLinks(comparison) {
    const times = (this.#badLinks.get(comparison) ?? 0) + 1;
    this.#badLinks.set(comparison, times);
    return times < LINK_ATTEMPTS;
  }

  /** @param {string} lease */
  #drop(lease) {
    if (this.#loading.delete(lease)) this.#downloads.prune();
    const at = this.#ready.findIndex((question) => question.lease === lease);
    if (at >= 0) this.#ready.splice(at, 1)[0].release();
  }
}
