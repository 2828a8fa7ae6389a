// Plays two clips that start and restart in the same frame.

import { Emitter } from "./emitter.js";

/**
 * @typedef {"left" | "right"} Side
 * @typedef {HTMLVideoElement | "unplayable" | null} Video null until decoded
 */

/** @type {Side[]} */
const SIDES = ["left", "right"];
const UNPLAYABLE = "unplayable";
// A phone in power-saving mode may not decode before playing, so "canplaythrough" may never fire.
const DECODE_MS = 5_000;
// A seek that never finishes must not stop both clips.
const REWIND_MS = 500;
const RATES = [1, 0.5, 0.25];

/** Two fetched clips, and their video elements once decoded. */
export class Pair {
  #blobs;
  /** @type {Promise<Pair> | null} */
  #decoding = null;
  /** @type {Video} */
  left = null;
  /** @type {Video} */
  right = null;

  /**
   * @param {string | null} lease UUID of the lease; null for an example
   * @param {(Blob | null)[]} blobs left and right clip; null for one that could not be fetched
   */
  constructor(lease, blobs) {
    this.lease = lease;
    this.#blobs = blobs;
  }

  get decoded() {
    return this.left !== null;
  }

  /** Create and load the video elements. Resolves to this pair; never rejects. */
  decode() {
    this.#decoding ??= this.#decode();
    return this.#decoding;
  }

  async #decode() {
    await null; // let the caller set #decoding to this attempt first
    const attempt = this.#decoding;
    const videos = await Promise.all(this.#blobs.map((blob) => (blob ? decoded(blob) : UNPLAYABLE)));
    if (attempt === this.#decoding) [this.left, this.right] = videos;
    else letGo(videos); // the pair was released meanwhile
    return this;
  }

  /** The videos that can be played. */
  get videos() {
    return [this.left, this.right].filter(isPlayable);
  }

  get playable() {
    return this.videos.length === 2;
  }

  pause() {
    for (const video of this.videos) video.pause();
  }

  /** Pause both videos at the beginning, ready to start immediately. Resolves when both are there. */
  async rewind() {
    this.pause();
    const moved = this.videos.filter((video) => video.currentTime > 0);
    if (moved.length) await Promise.all(moved.map((video) => sought(video, 0)));
  }

  /** Free the decoders, of which phones have few. The fetched clips are kept and can be decoded again. */
  release() {
    const videos = this.videos;
    this.pause();
    [this.left, this.right, this.#decoding] = [null, null, null];
    letGo(videos);
  }
}

/** @param {Video[]} videos */
function letGo(videos) {
  for (const video of videos.filter(isPlayable)) {
    URL.revokeObjectURL(video.src);
    video.removeAttribute("src");
    video.load();
  }
}

/** @param {Video} video @returns {video is HTMLVideoElement} */
function isPlayable(video) {
  return video !== null && video !== UNPLAYABLE;
}

/** @param {Blob} blob @returns {Promise<Video>} */
function decoded(blob) {
  const video = document.createElement("video");
  Object.assign(video, { muted: true, playsInline: true, preload: "auto", disablePictureInPicture: true });
  video.src = URL.createObjectURL(blob);
  return new Promise((resolve) => {
    video.addEventListener("canplaythrough", () => resolve(video), { once: true });
    video.addEventListener("error", () => resolve(UNPLAYABLE), { once: true });
    setTimeout(() => resolve(video.readyState >= HTMLMediaElement.HAVE_METADATA ? video : UNPLAYABLE), DECODE_MS);
  });
}

/** @param {HTMLVideoElement} video @param {number} time */
function sought(video, time) {
  return new Promise((resolve) => {
    video.addEventListener("seeked", resolve, { once: true });
    setTimeout(resolve, REWIND_MS);
    video.currentTime = time;
  });
}

/**
 * Plays one pair at a time. Event: `change` (a new pair, pause or speed).
 * @extends {Emitter<{ change: [] }>}
 */
export class Player extends Emitter {
  /** @type {Pair | null} */
  #pair = null;
  #frames;
  #turn = 0;
  #sight = new Stopwatch();
  paused = false;
  rate = RATES[0];
  /** True if the browser requires a touch before it plays anything, as phones do in power-saving mode. */
  blocked = false;

  /** @param {Record<Side, HTMLElement>} frames elements that will contain the videos */
  constructor(frames) {
    super();
    this.#frames = frames;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.#sight.stop();
      else if (this.paused) this.#sight.start();
      else this.restart();
    });
  }

  get pair() {
    return this.#pair;
  }

  /** Time in ms that both clips have been visible since they first played. */
  get shownMs() {
    return Math.round(this.#sight.ms);
  }

  /** Length of the longer clip in seconds. */
  get duration() {
    return Math.max(0, ...this.#videos.map((video) => video.duration).filter(Number.isFinite));
  }

  /** Playback position in seconds. */
  get position() {
    return Math.max(0, ...this.#videos.map((video) => video.currentTime));
  }

  /** Show a pair and start it; null clears the screen. Returns the previous pair. @param {Pair | null} pair */
  show(pair) {
    const before = this.#pair;
    before?.pause();
    this.#pair = pair;
    this.#sight = new Stopwatch();
    for (const side of SIDES) this.#place(this.#frames[side], pair?.[side] ?? null);
    this.restart();
    return before;
  }

  /** Restart both clips in the same frame: neither starts before both are at the beginning. */
  async restart() {
    const turn = ++this.#turn;
    this.#setPaused(false);
    const moved = this.position > 0;
    const rewound = this.#pair?.rewind();
    if (moved) await rewound; // no need to wait if both are already at the beginning
    if (turn === this.#turn) this.#play();
  }

  /** Pause or resume. */
  toggle() {
    if (!this.#pair) return;
    if (this.paused) {
      this.#setPaused(false);
      this.#play();
    } else {
      this.seek(this.position);
    }
  }

  /** Switch to the next slower speed, or from the slowest to full speed; it also applies to later pairs. */
  slow() {
    this.rate = RATES[(RATES.indexOf(this.rate) + 1) % RATES.length];
    for (const video of this.#videos) video.playbackRate = this.rate;
    this.emit("change");
  }

  /** Pause both clips at a position. @param {number} time in seconds */
  seek(time) {
    this.#turn += 1;
    this.#pair?.pause();
    for (const video of this.#videos) video.currentTime = Math.min(Math.max(time, 0), video.duration || 0);
    this.#setPaused(true);
  }

  get #videos() {
    return this.#pair?.videos ?? [];
  }

  async #play() {
    const sight = this.#sight;
    const videos = this.#videos;
    for (const video of videos) video.playbackRate = this.rate;
    try {
      // Skip ended videos: play() would restart them, behind the other clip.
      await Promise.all(videos.filter((video) => !video.ended).map((video) => video.play()));
      this.#setBlocked(false);
      if (this.#pair && !document.hidden) sight.start();
    } catch (error) {
      if (error instanceof Error && error.name === "NotAllowedError") this.#setBlocked(true);
    }
  }

  /** @param {HTMLElement} frame @param {Video} video */
  #place(frame, video) {
    frame.classList.toggle(UNPLAYABLE, video === UNPLAYABLE);
    if (!isPlayable(video)) {
      frame.replaceChildren();
      return;
    }
    frame.style.setProperty("--ratio", String(video.videoWidth / video.videoHeight));
    video.onended = () => this.#videos.every((each) => each.ended || each.error) && this.restart();
    frame.replaceChildren(video);
  }

  /** @param {boolean} paused */
  #setPaused(paused) {
    this.paused = paused;
    this.emit("change");
  }

  /** @param {boolean} blocked */
  #setBlocked(blocked) {
    this.blocked = blocked;
    for (const frame of Object.values(this.#frames)) frame.classList.toggle("blocked", blocked);
  }
}

class Stopwatch {
  #ms = 0;
  /** @type {number | null} */
  #since = null;

  get ms() {
    return this.#ms + (this.#since === null ? 0 : performance.now() - this.#since);
  }

  start() {
    this.#since ??= performance.now();
  }

  stop() {
    this.#ms = this.ms;
    this.#since = null;
  }
}
