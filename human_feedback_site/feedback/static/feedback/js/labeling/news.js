// A card that tells labelers between questions about a new video of the agent, and how many answers it is built on.

import { counted, element } from "../dom.js";

/**
 * @import { Counted } from "../dom.js"
 * @import { Episode } from "./api.js"
 * @import { Kept } from "./kept.js"
 */

export class News {
  #kept;
  #taught;
  #card = element("news");
  #video = element("news-video", HTMLVideoElement);
  /** Step of the newest video that this labeler knows; NaN on the first visit. */
  #known;
  /** The new video, until it is shown. @type {Episode | null} */
  #next = null;

  /**
   * @param {Kept} kept stores the step of the newest known video in the browser
   * @param {Counted} taught text of the card
   */
  constructor(kept, taught) {
    this.#kept = kept;
    this.#known = Number.parseInt(kept.value ?? "", 10);
    this.#taught = taught;
    document.addEventListener("keydown", ({ key }) => {
      if (key === "Escape" && !document.querySelector("dialog[open]")) this.close();
    });
  }

  /**
   * Remember the newest video until the next answer, unless the labeler knows it or it is built on no answers.
   * On a labeler's first visit, the current video counts as known.
   * @param {Episode | null} newest
   * @param {boolean} watched true if the labeler is watching it now
   */
  hear(newest, watched) {
    const step = newest?.step ?? -1;
    if (Number.isNaN(this.#known) || watched) this.#know(step);
    this.#next = newest?.answered && step > this.#known ? newest : null;
    if (!newest) this.close();
  }

  /** Show the card if there is a new video. The keyboard focus stays where it is. */
  show() {
    if (!this.#next?.answered) return;
    const { step, answered, url } = this.#next;
    this.#next = null;
    this.#know(step);
    const title = counted(this.#taught, answered);
    element("news-title").textContent = title;
    element("news-said").textContent = title;
    this.#card.hidden = false;
    // Narrow windows show only the text and a button that opens the video.
    if (!this.#video.getClientRects().length) return;
    this.#video.src = url;
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) this.#video.play().catch(() => {});
  }

  /** @param {number} step */
  #know(step) {
    this.#known = step;
    this.#kept.value = String(step);
  }

  close() {
    if (this.#card.hidden) return;
    this.#card.hidden = true;
    element("news-said").textContent = "";
    this.#video.removeAttribute("src");
    this.#video.load();
  }
}
