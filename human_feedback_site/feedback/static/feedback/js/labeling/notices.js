// Browser notifications, which a labeler may turn on: they come if there is something to judge again and the tab is hidden.

import { all } from "../dom.js";

/** @import { Kept } from "./kept.js" */

export class Notices {
  #kept;
  #icon = document.querySelector("link[rel=icon]")?.getAttribute("href") ?? "";
  /** The one that was shown since the tab was last in sight. @type {Notification | null} */
  #shown = null;

  /** @param {Kept} kept stores in the browser whether they are on */
  constructor(kept) {
    this.#kept = kept;
    this.#render();
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) return;
      this.#shown?.close();
      this.#shown = null;
    });
  }

  /** True if this browser can show them: phones need a service worker. */
  get #possible() {
    return isSecureContext && "Notification" in window && matchMedia("(hover: hover)").matches;
  }

  get #on() {
    return this.#possible && this.#kept.value === "on" && Notification.permission === "granted";
  }

  /** Turn them on or off. Resolves to false if the browser refuses. */
  async toggle() {
    const wanted = !this.#on;
    const refused = wanted && (await Notification.requestPermission()) !== "granted";
    this.#kept.value = wanted && !refused ? "on" : "off";
    this.#render();
    return !refused;
  }

  #render() {
    for (const button of all("[data-action=notify]")) {
      button.hidden = !this.#possible;
      button.setAttribute("aria-pressed", String(this.#on));
    }
  }

  /** Show one, unless the tab is in sight or one was shown since it was. @param {string} title @param {string} body */
  show(title, body) {
    if (!this.#on || !document.hidden || this.#shown) return;
    const notice = new Notification(title, { body, icon: this.#icon, tag: location.pathname });
    notice.addEventListener("click", () => {
      window.focus();
      notice.close();
    });
    this.#shown = notice;
  }
}
