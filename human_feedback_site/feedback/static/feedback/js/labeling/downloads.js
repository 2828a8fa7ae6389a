// Downloads clips over a connection that may be slow: what is needed first comes first, and an interrupted download
// continues where it broke off.

import { Patience } from "../patience.js";
import { Emitter } from "./emitter.js";

const STALLED_MS = 15_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8_000;
const RATE_MS = 10_000; // the rate is measured over this time
const LEAST_RATE_MS = 1_000; // and not told before this time
// On a slow connection, only the clips of one question are downloaded at a time. Browsers open six connections to a
// site; the rest is for answers.
const SLOTS = 4;
const FAST_MS = 2_000; // time to download a question's clips on a connection that isn't slow

/** One clip: what has arrived of it, and how to go on. */
class Download {
  /** @type {Uint8Array<ArrayBuffer>[]} */
  parts = [];
  got = 0;
  /** Size in bytes; null if not known yet. @type {number | null} */
  size = null;
  wait = FIRST_WAIT_MS;
  yields = false;
  /** The current attempt. @type {Patience | null} */
  patience = null;
  /** @type {(blob: Blob | null) => void} */
  resolve = () => {};

  /** @param {string} url @param {() => boolean} isWanted @param {boolean} urgent */
  constructor(url, isWanted, urgent) {
    this.url = url;
    this.isWanted = isWanted;
    this.urgent = urgent;
    /** @type {Promise<Blob | null>} */
    this.blob = new Promise((resolve) => (this.resolve = resolve));
  }

  /** Interrupt the current attempt in favor of another download. */
  release() {
    this.yields = true;
    this.patience?.cancel();
  }

  /** Bytes that are missing; null if not known. */
  get missing() {
    return this.size === null ? null : this.size - this.got;
  }
}

/**
 * Queue of downloads.
 *
 * Events: `slow` (a clip can't be fetched; retries continue), `moved` (data arrived).
 * @extends {Emitter<{ slow: [], moved: [] }>}
 */
export class Downloads extends Emitter {
  /** @type {Download[]} */
  #queue = [];
  /** @type {Set<Download>} */
  #active = new Set();
  /** Data that arrived lately. @type {{ at: number, bytes: number }[]} */
  #arrived = [];
  /** Bytes per second. @type {number | null} */
  #rate = null;
  #measuredMs = 0;
  #sizes = { sum: 0, count: 0 };
  /** Number of clips of a question. */
  clips = 2;

  /**
   * Download a clip after those requested earlier. Resolves to its data; null if the store rejects the request or it is
   * no longer wanted. Retries while it is wanted.
   * @param {string} url
   * @param {() => boolean} isWanted
   * @param {boolean} [urgent] download it before all others
   */
  fetch(url, isWanted, urgent = false) {
    const download = new Download(url, isWanted, urgent);
    this.#enqueue(download);
    if (urgent) {
      // Others release their places; what they have received is kept.
      for (const each of this.#active) if (!each.urgent) each.release();
    }
    this.#start();
    return download.blob;
  }

  /** Stop downloads that are no longer wanted. */
  prune() {
    for (const each of this.#active) if (!each.isWanted()) each.patience?.cancel();
    for (const each of this.#queue) if (!each.isWanted()) each.resolve(null);
    this.#queue = this.#queue.filter((each) => each.isWanted());
  }

  /** Time in ms that downloading a question's clips takes; null if not known yet. */
  get questionMs() {
    const { sum, count } = this.#sizes;
    return this.#rate && count ? (this.clips * sum * 1000) / count / this.#rate : null;
  }

  /** True if the connection is known to be slow. */
  get slow() {
    return this.questionMs !== null && this.questionMs >= FAST_MS;
  }

  /** True if data arrived within the last few seconds. */
  get flowing() {
    const last = this.#arrived.at(-1);
    return this.#active.size > 0 && last !== undefined && performance.now() - last.at < STALLED_MS / 3;
  }

  /** Estimated time in ms until the next question is complete; null if not known. */
  get restMs() {
    let bytes = 0;
    for (const { missing } of [...this.#active].slice(0, this.clips)) {
      if (missing === null) return null;
      bytes += missing;
    }
    return this.#rate && this.#active.size && this.#measuredMs > LEAST_RATE_MS ? (bytes * 1000) / this.#rate : null;
  }

  /** Put a download behind the urgent ones; before the others if it is urgent or begun. @param {Download} download */
  #enqueue(download, isFirst = download.urgent) {
    const at = isFirst ? this.#queue.findIndex((each) => !each.urgent) : -1;
    this.#queue.splice(at < 0 ? this.#queue.length : at, 0, download);
  }

  #start() {
    const fast = this.questionMs !== null && this.questionMs < FAST_MS;
    while (this.#active.size < (fast ? SLOTS : this.clips) && this.#queue.length) {
      const [download] = this.#queue.splice(0, 1);
      if (!this.#active.size) this.#arrived = [{ at: performance.now(), bytes: 0 }];
      this.#active.add(download);
      this.#run(download);
    }
  }

  /** Make one attempt, and plan the next. @param {Download} download */
  async #run(download) {
    const before = download.got;
    /** @type {Blob | null | undefined} */
    let blob;
    let broke = false;
    try {
      blob = download.isWanted() ? await this.#attempt(download) : null;
    } catch {
      broke = true; // the connection, or it was needed for something urgent
      download.patience?.cancel();
    }
    if (blob !== undefined || !download.isWanted()) {
      this.#active.delete(download);
      download.resolve(blob ?? null);
      this.#start();
      return;
    }
    if (download.got > before || download.yields) download.wait = FIRST_WAIT_MS;
    this.#retry(download, broke);
  }

  /** @param {Download} download @param {boolean} broke true if the connection did, which others may need as well */
  #retry(download, broke) {
    const wait = download.yields ? 0 : download.wait;
    // At first, no later clip takes the place. A clip that keeps failing gives it up.
    const stays = broke && !download.yields && wait <= 2 * FIRST_WAIT_MS;
    if (wait > 2 * FIRST_WAIT_MS) this.emit("slow");
    download.wait = Math.min(2 * download.wait, LONGEST_WAIT_MS);
    download.yields = false;
    if (!stays) this.#active.delete(download);
    setTimeout(() => {
      if (stays) this.#run(download);
      else this.#enqueue(download, true);
      this.#start();
    }, wait);
    this.#start();
  }

  /**
   * Resolve to the clip; null if the store rejects the request, undefined if it may accept it later.
   * @param {Download} download
   */
  async #attempt(download) {
    const patience = (download.patience = new Patience(STALLED_MS));
    const headers = download.got ? { Range: `bytes=${download.got}-` } : undefined;
    const reply = await fetch(download.url, { headers, signal: patience.signal });
    if (!reply.ok) {
      patience.cancel();
      if (reply.status === 416) this.#restart(download);
      else if (reply.status < 500 && reply.status !== 429) return null;
      return undefined;
    }
    if (reply.status !== 206) this.#restart(download);
    const length = Number(reply.headers.get("Content-Length"));
    download.size = length ? download.got + length : null;
    await patience.read(reply, (bytes) => this.#take(download, bytes));
    if (download.missing) return undefined; // the response ended early
    this.#sizes.sum += download.got;
    this.#sizes.count += 1;
    return new Blob(download.parts, { type: "video/mp4" });
  }

  /** @param {Download} download */
  #restart(download) {
    download.parts = [];
    download.got = 0;
  }

  /** @param {Download} download @param {Uint8Array<ArrayBuffer>} bytes */
  #take(download, bytes) {
    download.parts.push(bytes);
    download.got += bytes.length;
    const now = performance.now();
    this.#arrived.push({ at: now, bytes: bytes.length });
    while (now - this.#arrived[0].at > RATE_MS) this.#arrived.shift();
    const ms = (this.#measuredMs = now - this.#arrived[0].at);
    if (ms > 0) this.#rate = (1000 * this.#arrived.reduce((sum, each) => sum + each.bytes, 0)) / ms;
    this.emit("moved");
  }
}
