// The next pairs: leased and fetched to the last byte, so that neither the expiry of a link nor a tunnel matters, and
// the first of them decoded, so that the swap is immediate.

import { Emitter } from "./emitter.js";
import { Pair } from "./player.js";

/** @import { Api, Lease, Leases } from "./api.js" */

const AHEAD = 8;
const MOST_LEASES = 10; // in the site's hands at once
const DECODED = 3;
const FETCH_TIMEOUT_MS = 30_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8_000;
const LINK_ATTEMPTS = 2;
// Pairs taken back one after the other are not all kept.
const MOST_READY = 12;
// Whoever waits for the first pair has the whole line for it, but not for longer than this.
const FIRST_ALONE_MS = 2_000;

/**
 * Leases held by this page and the pairs made of them. A lease is told of by its UUID where nothing else is said.
 *
 * Events: `reply` (to a request for leases), `ready` (a pair may be taken), `lost` (the lease on screen is lost),
 * `failed` (why leases were not given), `slow` (clips cannot be reached; it goes on trying).
 * @extends {Emitter<{ reply: [Leases], ready: [], lost: [], failed: [unknown], slow: [] }>}
 */
export class Prefetch extends Emitter {
  #api;
  #pending;
  /** @type {Pair[]} */
  #ready = [];
  /** @type {Map<string, Promise<Pair | null>>} */
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
  /** True once the site has said what there is. */
  asked = false;

  /** @param {Api} api @param {() => string[]} pending leases whose answers are still unsaved */
  constructor(api, pending) {
    super();
    this.#api = api;
    this.#pending = pending;
  }

  get ready() {
    return this.#ready.length;
  }

  /** True while a clip is on its way, or is being decoded. */
  get loading() {
    return this.#loading.size + this.#ready.length > 0;
  }

  /** The next ready pair goes on screen; null where there is none. */
  take() {
    const pair = this.#ready[0]?.decoded ? this.#ready.shift() : undefined;
    this.shown = pair?.lease ?? null;
    this.#decodeNext();
    return pair ?? null;
  }

  /**
   * A pair goes on screen out of turn; the one that was there comes next.
   * @param {Pair} pair
   * @param {Pair | null} current
   */
  interrupt(pair, current) {
    if (current) {
      current.rewind();
      this.#ready.unshift(current);
    }
    // The lease of one let go lives on; the site gives it to this page again when there is room for it.
    for (const far of this.#ready.splice(MOST_READY)) far.release();
    for (const far of this.#ready.slice(DECODED)) if (far.decoded) far.release();
    this.shown = pair.lease;
  }

  /** The lease has been answered, here or in another tab: never show it again. @param {string} lease */
  answered(lease) {
    this.#answered.add(lease);
    this.#drop(lease);
  }

  /** The pair of an answer that was taken back, or null where its clips cannot be had now. @param {Lease} lease */
  async recall(lease) {
    this.#answered.delete(lease.uuid);
    const pair =
      this.#ready.find((each) => each.lease === lease.uuid) ??
      (await (this.#loading.get(lease.uuid) ?? this.#load(lease)));
    this.#ready = this.#ready.filter((each) => each !== pair);
    return (await pair?.decode()) ?? null;
  }

  /**
   * Renew what is held and ask for what is missing. Calls that come while one runs make one more run, not many.
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
    const ours = [this.shown, ...this.#ready.map((pair) => pair.lease), ...this.#loading.keys()];
    const held = ours.filter((lease) => lease !== null);
    const count = Math.min(MOST_LEASES, 1 + AHEAD + unsaved.length);
    try {
      const reply = await this.#api.leases({ count, held, shown: this.shown });
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
    return lease === this.shown || this.#loading.has(lease) || this.#ready.some((pair) => pair.lease === lease);
  }

  /** @param {Lease} lease */
  async #add(lease) {
    if (this.#knows(lease.uuid) || this.#answered.has(lease.uuid)) return;
    const pair = await this.#load(lease);
    if (!pair) return;
    this.#ready.push(pair);
    await this.#decodeNext();
  }

  /** Decode those that come on screen next; `ready` as soon as the very next one is. */
  async #decodeNext() {
    await Promise.all(this.#ready.slice(0, DECODED).map((pair) => this.#decode(pair)));
  }

  /** @param {Pair} pair */
  async #decode(pair) {
    if (pair.decoded) return;
    await pair.decode();
    if (this.#ready[0]?.decoded) this.emit("ready");
  }

  /**
   * The pair; null where the lease was dropped on the way, or is let go to come back with new links.
   * @param {Lease} lease
   */
  #load(lease) {
    /** @type {Promise<Pair | null>} */
    const loading = this.#prepare(lease).then((pair) => {
      const wanted = this.#loading.get(lease.uuid) === loading;
      if (wanted) this.#loading.delete(lease.uuid);
      else pair?.release();
      return wanted ? pair : null;
    });
    this.#loading.set(lease.uuid, loading);
    return loading;
  }

  /** @param {Lease} lease */
  async #prepare(lease) {
    // One turn of the event loop, so that the lease counts as loading before the first fetch asks whether it does.
    await this.#turn();
    const blobs = await Promise.all([lease.left, lease.right].map(({ url }) => this.#fetch(url, lease.uuid)));
    if (blobs.includes(null) && this.#worthNewLinks(lease.comparison)) return null;
    return new Pair(lease.uuid, blobs);
  }

  async #turn() {
    const first = this.#loading.values().next().value;
    const alone = first && !this.shown && !this.#ready.length;
    await null;
    if (alone) await Promise.race([first, new Promise((resolve) => setTimeout(resolve, FIRST_ALONE_MS))]);
  }

  /**
   * The whole clip; null where the store refuses it. It tries while the store is away and the pair is wanted.
   * @param {string} url
   * @param {string} lease
   */
  async #fetch(url, lease) {
    for (let wait = FIRST_WAIT_MS; this.#loading.has(lease); wait = Math.min(wait * 2, LONGEST_WAIT_MS)) {
      try {
        const reply = await fetch(url, { signal: AbortSignal.timeout(FETCH_TIMEOUT_MS) });
        if (reply.ok) return await reply.blob();
        if (reply.status < 500 && reply.status !== 429) return null;
      } catch {
        // The network or the store is away.
      }
      if (wait > 2 * FIRST_WAIT_MS) this.emit("slow");
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
    return null;
  }

  /**
   * A link may have expired on the way; a second refusal means that the clip is not there.
   * @param {string} comparison
   */
  #worthNewLinks(comparison) {
    const times = (this.#badLinks.get(comparison) ?? 0) + 1;
    this.#badLinks.set(comparison, times);
    return times < LINK_ATTEMPTS;
  }

  /** @param {string} lease */
  #drop(lease) {
    this.#loading.delete(lease);
    const at = this.#ready.findIndex((pair) => pair.lease === lease);
    if (at >= 0) this.#ready.splice(at, 1)[0].release();
  }
}
