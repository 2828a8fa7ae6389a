// Plays the clips of a question, which start and restart in the same frame.

import { Emitter } from "./emitter.js";

/**
 * @typedef {HTMLVideoElement | "unplayable"} Video
 */

const UNPLAYABLE = "unplayable";
// A phone in power-saving mode may not decode before playing, so "canplaythrough" may never fire.
const DECODE_MS = 5_000;
// A seek that never finishes must not stop all clips.
const REWIND_MS = 500;
const RATES = [1, 0.5, 0.25];

/** The fetched clips of a question, and their video elements once decoded. */
export class Question {
  #blobs;
  /** @type {Promise<Question> | null} */
  #decoding = null;
  /** The clips in the order of the screen; empty until decoded. @type {Video[]} */
  clips = [];

  /**
   * @param {string | null} lease UUID of the lease; null for an example
   * @param {string} kind
   * @param {(Blob | null)[]} blobs clips in the order of the screen; null for one that could not be fetched
   */
  constructor(lease, kind, blobs) {
    this.lease = lease;
    this.kind = kind;
    this.#blobs = blobs;
  }

  get decoded() {
    return this.clips.length > 0;
  }

  /** Create and load the video elements. Resolves to this question; never rejects. */
  decode() {
    this.#decoding ??= this.#decode();
    return this.#decoding;
  }

  async #decode() {
    await null; // let the caller set #decoding to this attempt first
    const attempt = this.#decoding;
    const clips = await Promise.all(this.#blobs.map((blob) => (blob ? decoded(blob) : UNPLAYABLE)));
    if (attempt === this.#decoding) this.clips = clips;
    else letGo(clips); // the question was released meanwhile
    return this;
  }

  /** The videos that can be played. */
  get videos() {
    return this.clips.filter(isPlayable);
  }

  get playable() {
    return this.videos.length === this.#blobs.length;
  }

  pause() {
    for (const video of this.videos) video.pause();
  }

  /** Pause all videos at the beginning, ready to start immediately. Resolves when all are there. */
  async rewind() {
    this.pause();
    const moved = this.videos.filter((video) => video.currentTime > 0);
    if (moved.length) await Promise.all(moved.map((video) => sought(video, 0)));
  }

  /** Free the decoders, of which phones have few. The fetched clips are kept and can be decoded again. */
  release() {
    const videos = this.videos;
    this.pause();
    [this.clips, this.#decoding] = [[], null];
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
  return video !== UNPLAYABLE;
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
 * Plays one question at a time. Events: `shown` (a question, before its clips are placed; null for none), `change` (a
 * new question, pause or speed).
 * @extends {Emitter<{ shown: [Question | null], change: [] }>}
 */
export class Player extends Emitter {
  /** @type {Question | null} */
  #question = null;
  #frames;
  #turn = 0;
  #sight = new Stopwatch();
  paused = false;
  rate = RATES[0];
  /** True if the browser requires a touch before it plays anything, as phones do in power-saving mode. */
  blocked = false;

  /** @param {HTMLElement[]} frames elements that will contain the videos, at least as many as a question has */
  constructor(frames) {
    super();
    this.#frames = frames;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.#sight.stop();
      else if (this.paused) this.#sight.start();
      else this.restart();
    });
  }

  get question() {
    return this.#question;
  }

  /** Time in ms that all clips have been visible since they first played. */
  get shownMs() {
    return Math.round(this.#sight.ms);
  }

  /** Length of the longest clip in seconds. */
  get duration() {
    return Math.max(0, ...this.#videos.map((video) => video.duration).filter(Number.isFinite));
  }

  /** Playback position in seconds. */
  get position() {
    return Math.max(0, ...this.#videos.map((video) => video.currentTime));
  }

  /**
   * Show a question and start it. Returns the previous one, whose clips stay where they are if there is no next one.
   * @param {Question | null} question
   */
  show(question) {
    const before = this.#question;
    before?.pause();
    this.#question = question;
    this.emit("shown", question);
    this.#sight = new Stopwatch();
    for (const [place, frame] of question ? this.#frames.entries() : []) this.#place(frame, question?.clips[place]);
    this.restart();
    return before;
  }

  /** Restart all clips in the same frame: none starts before all are at the beginning. */
  async restart() {
    const turn = ++this.#turn;
    this.#setPaused(false);
    const moved = this.position > 0;
    const rewound = this.#question?.rewind();
    if (moved) await rewound; // no need to wait if all are already at the beginning
    if (turn === this.#turn) this.#play();
  }

  /** Pause or resume. */
  toggle() {
    if (!this.#question) return;
    if (this.paused) {
      this.#setPaused(false);
      this.#play();
    } else {
      this.seek(this.position);
    }
  }

  /** Switch to the next slower speed, or from the slowest to full speed; it also applies to later questions. */
  slow() {
    this.rate = RATES[(RATES.indexOf(this.rate) + 1) % RATES.length];
    for (const video of this.#videos) video.playbackRate = this.rate;
    this.emit("change");
  }

  /** Pause all clips at a position. @param {number} time in seconds */
  seek(time) {
    this.#turn += 1;
    this.#question?.pause();
    for (const video of this.#videos) video.currentTime = Math.min(Math.max(time, 0), video.duration || 0);
    this.#setPaused(true);
  }

  get #videos() {
    return this.#question?.videos ?? [];
  }

  async #play() {
    const sight = this.#sight;
    const videos = this.#videos;
    for (const video of videos) video.playbackRate = this.rate;
    try {
      // Skip ended videos: play() would restart them, behind the other clips.
      await Promise.all(videos.filter((video) => !video.ended).map((video) => video.play()));
      this.#setBlocked(false);
      if (this.#question && !document.hidden) sight.start();
    } catch (error) {
      if (error instanceof Error && error.name === "NotAllowedError") this.#setBlocked(true);
    }
  }

  /** @param {HTMLElement} frame @param {Video} [video] */
  #place(frame, video) {
    frame.classList.toggle(UNPLAYABLE, video === UNPLAYABLE);
    if (!video || !isPlayable(video)) {
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
    for (const frame of this.#frames) frame.classList.toggle("blocked", blocked);
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
