// Detects whether the labeler is present, and whether the page's knowledge of the site may be outdated.

import { Emitter } from "./emitter.js";

// A labeler who does nothing for this long is considered gone; the lease then expires and others get the question.
const GONE_MS = 2 * 60_000;
// A shorter visit to another tab doesn't count as an absence.
const GLANCE_MS = 5_000;
// Longer than the ten seconds between requests plus a request's timeout: the computer must have been asleep.
const OLD_NEWS_MS = 45_000;
const SIGNS_OF_LIFE = ["pointermove", "pointerdown", "keydown", "touchstart", "wheel"];

/**
 * Event: `back` (the labeler came back, so the page should refresh immediately).
 * @extends {Emitter<{ back: [] }>}
 */
export class Presence extends Emitter {
  #seenAt = Date.now();
  /** @type {number | null} */
  #hiddenAt = document.hidden ? Date.now() : null;
  /** Time of the last request to the site, successful or not. */
  #askedAt = Date.now();
  #isBack = false;
  /** True if the site has not been reached since the labeler came back; it may have shut down meanwhile. */
  doubtful = false;

  constructor() {
    super();
    for (const sign of SIGNS_OF_LIFE) addEventListener(sign, () => this.#seen(), { passive: true });
    document.addEventListener("visibilitychange", () => this.#turned());
  }

  /** True if there has been no input for a while. */
  get idle() {
    return Date.now() - this.#seenAt > GONE_MS;
  }

  /** Record that the site responded. */
  heard() {
    this.#askedAt = Date.now();
    this.doubtful = this.#isBack = false;
  }

  /** Record that the site could not be reached. A gap while the labeler is present doesn't set `doubtful`. */
  missed() {
    const slept = Date.now() - this.#askedAt > OLD_NEWS_MS;
    this.doubtful ||= this.#isBack || slept;
    this.#askedAt = Date.now();
    this.#isBack = false;
  }

  #seen() {
    const wasIdle = this.idle;
    this.#seenAt = Date.now();
    if (wasIdle) this.#back(true);
  }

  #turned() {
    this.#seenAt = Date.now();
    if (document.hidden) {
      this.#hiddenAt = Date.now();
      return;
    }
    const wasAway = this.#hiddenAt !== null && Date.now() - this.#hiddenAt > GLANCE_MS;
    this.#hiddenAt = null;
    this.#back(wasAway);
  }

  /** @param {boolean} wasAway */
  #back(wasAway) {
    this.#isBack ||= wasAway;
    this.emit("back");
  }
}
