// Control bar below the clips: pause, speed, playback position, full screen.

import { element, part } from "../dom.js";

/** @import { Player } from "./player.js" */

const STEPS = 1000;
const TICK_MS = 40; // about as often as clips change, so that the page is not redrawn in between
/** @type {Record<number, string>} */
const RATE_NAMES = { 1: "1×", 0.5: "½×", 0.25: "¼×" };

export class Transport {
  #player;
  #pause = part(document, "[data-action=pause]");
  #rate = element("rate");
  #scrub = element("scrub", HTMLInputElement);
  #ticking = false;

  /** @param {Player} player */
  constructor(player) {
    this.#player = player;
    player.on("change", () => this.#render());
    this.#scrub.max = String(STEPS);
    this.#scrub.addEventListener("input", () => {
      player.seek((Number(this.#scrub.value) / STEPS) * player.duration);
      this.#scrub.ariaValueText = `${player.position.toFixed(2)} s`;
    });
    // After a drag, remove the focus so that the arrow keys answer again; keyboard users keep it.
    this.#scrub.addEventListener("pointerup", () => this.#scrub.blur());
    part(document, "[data-action=fullscreen]").hidden = !document.fullscreenEnabled;
  }

  fullscreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else document.documentElement.requestFullscreen?.().catch(() => {}); // the browser may refuse
  }

  #render() {
    const { paused } = this.#player;
    this.#pause.classList.toggle("paused", paused);
    this.#pause.title = (paused ? this.#pause.dataset.play : this.#pause.dataset.pause) ?? "";
    this.#rate.textContent = RATE_NAMES[this.#player.rate];
    if (this.#ticking) this.#follow();
    else this.#tick();
  }

  #tick() {
    this.#follow();
    this.#ticking = this.#moves();
    if (this.#ticking) setTimeout(() => this.#tick(), TICK_MS);
  }

  #moves() {
    return this.#player.question !== null && !this.#player.paused;
  }

  #follow() {
    const { position, duration } = this.#player;
    if (document.activeElement !== this.#scrub) this.#scrub.value = String(duration ? (STEPS * position) / duration : 0);
  }
}
