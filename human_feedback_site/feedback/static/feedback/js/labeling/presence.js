// Whether somebody sits before the page, and whether what it knows of the site may be old news.

import { Emitter } from "./emitter.js";

// Whoever has done nothing for so long before a pair has gone: its lease ends, and somebody else is given the pair.
const GONE_MS = 2 * 60_000;
// A glance at another tab: what was here goes on.
const GLANCE_MS = 5_000;
// More than the ten seconds between two requests and the time that one may take: the computer has slept.
const OLD_NEWS_MS = 40_000;
const SIGNS_OF_LIFE = ["pointermove", "pointerdown", "keydown", "touchstart", "wheel"];

/**
 * Event: `back` (somebody has come back to the page: it looks for news at once).
 * @extends {Emitter<{ back: [] }>}
 */
export class Presence extends Emitter {
  #seenAt = Date.now();
  /** @type {number | null} */
  #hiddenAt = document.hidden ? Date.now() : null;
  /** When the site was last asked, whether or not it answered. */
  #askedAt = Date.now();
  #isBack = false;
  /** True where the site has not been reached since somebody came back: meanwhile it may have ended. */
  doubtful = false;

  constructor() {
    super();
    for (const sign of SIGNS_OF_LIFE) addEventListener(sign, () => this.#seen(), { passive: true });
    document.addEventListener("visibilitychange", () => this.#turned());
  }

  /** Whether nobody has done anything for a while. */
  get idle() {
    return Date.now() - this.#seenAt > GONE_MS;
  }

  /** The site has answered. */
  heard() {
    this.#askedAt = Date.now();
    this.doubtful = this.#isBack = false;
  }

  /** The site could not be reached. A gap while somebody is at it raises no doubt. */
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
