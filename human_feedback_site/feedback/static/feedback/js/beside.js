// What goes on beside the pairs: everybody's progress, and a film of what the policy does now.

const EVERY_MS = 60_000;

export class Beside {
  #api;
  #screen;
  #episode = null;
  #timer = 0;

  constructor(api, screen) {
    this.#api = api;
    this.#screen = screen;
    document.addEventListener("visibilitychange", () => this.refresh());
  }

  /** Ask now, and every minute for as long as the page is looked at. */
  async refresh() {
    clearTimeout(this.#timer);
    if (document.hidden) return;
    try {
      const { answered, wanted, episode } = await this.#api.progress();
      const isNew = episode?.step !== this.#episode?.step;
      this.#episode = episode;
      if (isNew && this.#screen.episodeShown) this.#screen.showEpisode(episode);
      this.#screen.progress(answered, wanted);
      this.#screen.episodeAvailable(episode !== null);
    } catch {
      // It is not worth a word: answers and pairs say what is wrong.
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.refresh(), EVERY_MS);
  }

  /** Show the film beside the pairs, or put it away. */
  toggleEpisode() {
    this.#screen.showEpisode(this.#screen.episodeShown ? null : this.#episode);
  }
}
