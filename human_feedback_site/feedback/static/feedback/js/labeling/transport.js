// The bar below the clips: pause, speed, where the clips are, full screen.

const STEPS = 1000;

export class Transport {
  #player;
  #pause = document.querySelector("[data-action=pause]");
  #rate = document.getElementById("rate");
  #scrub = document.getElementById("scrub");
  #ticking = false;

  constructor(player) {
    this.#player = player;
    player.addEventListener("change", () => this.#render());
    this.#scrub.max = String(STEPS);
    this.#scrub.addEventListener("input", () => {
      player.seek((this.#scrub.value / STEPS) * player.duration);
      this.#scrub.ariaValueText = `${player.position.toFixed(2)} s`;
    });
    // After a drag the arrows mean answers again; who came to it with the keyboard keeps it.
    this.#scrub.addEventListener("pointerup", () => this.#scrub.blur());
    document.querySelector("[data-action=fullscreen]").hidden = !document.fullscreenEnabled;
  }

  fullscreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else document.documentElement.requestFullscreen?.().catch(() => {}); // the browser may say no
  }

  #render() {
    this.#pause.setAttribute("aria-pressed", String(this.#player.paused));
    this.#rate.textContent = { 1: "1×", 0.5: "½×", 0.25: "¼×" }[this.#player.rate];
    this.#follow();
    if (!this.#ticking && this.#moves()) requestAnimationFrame(() => this.#tick());
    this.#ticking ||= this.#moves();
  }

  #tick() {
    this.#follow();
    this.#ticking = this.#moves();
    if (this.#ticking) requestAnimationFrame(() => this.#tick());
  }

  #moves() {
    return this.#player.pair !== null && !this.#player.paused;
  }

  #follow() {
    const { position, duration } = this.#player;
    if (document.activeElement !== this.#scrub) this.#scrub.value = String(duration ? (STEPS * position) / duration : 0);
  }
}
