// What goes on beside the pairs: everybody's progress, and videos of what the policy does.

/**
 * @import { Api, Choice, Episode, ExperimentState, Progress } from "./api.js"
 * @import { Screen } from "./screen.js"
 */

const EVERY_MS = 15_000;
const UNSEEN_MS = 30_000; // often enough to hear of the end before a site ends with its run
// The site counts every ten seconds: for so long its number may be without answers of this page.
const COUNTED_AFTER_MS = 12_000;

export class Beside {
  #api;
  #screen;
  #tell;
  /** @type {Episode | null} */
  #episode = null;
  #timer = 0;
  #answered = 0;
  /** @type {number | null} */
  #wanted = null;
  #starts = false;
  /** When answers of this page filled a place. @type {number[]} */
  #counted = [];

  /**
   * @param {Api} api
   * @param {Screen} screen
   * @param {(state: ExperimentState) => void} tell what the state of the experiment is to be told to
   */
  constructor(api, screen, tell) {
    this.#api = api;
    this.#screen = screen;
    this.#tell = tell;
    document.addEventListener("visibilitychange", () => this.refresh());
  }

  /** Whether training has not started yet. */
  get starts() {
    return this.#starts;
  }

  /** Ask now, and every few seconds; less often while nobody looks at the page. */
  async refresh() {
    clearTimeout(this.#timer);
    try {
      this.#take(await this.#api.progress());
    } catch {
      // It is not worth a word: answers and pairs say what is wrong.
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.refresh(), document.hidden ? UNSEEN_MS : EVERY_MS);
  }

  /** An answer of this page fills a place: the bar moves at once. @param {Choice} choice as the labeler saw it */
  count(choice) {
    if (this.#starts && choice === "cant_tell") return; // another pair takes its place
    this.#counted.push(performance.now());
    this.#answered += 1;
    this.#show();
  }

  /** An answer of this page was taken back. */
  discount() {
    this.#counted = [];
    this.#answered = Math.max(0, this.#answered - 1);
    this.#show();
  }

  /** @param {Progress} progress */
  #take({ state, answered, wanted, start, episodes }) {
    this.#tell(state);
    // Links expire, these addresses last.
    const videos = episodes.map(({ step }) => ({ step, url: `${this.#api.urls.episodes}/${step}` }));
    const episode = videos.at(-1) ?? null;
    const isNew = episode?.step !== this.#episode?.step;
    this.#episode = episode;
    if (isNew && this.#screen.episodeShown) this.#screen.showEpisode(episode);
    this.#screen.episodeAvailable(episode !== null);
    this.#screen.strip(videos);
    const now = start ?? { answered, wanted };
    this.#counted = this.#counted.filter((at) => performance.now() - at < COUNTED_AFTER_MS);
    const uncounted = this.#starts === Boolean(start) ? this.#counted.length : 0;
    // No further than the answers that the site may not have counted yet; some may have filled no place.
    this.#answered = Math.min(Math.max(now.answered, this.#answered), now.answered + uncounted);
    [this.#wanted, this.#starts] = [now.wanted, Boolean(start)];
    this.#show();
  }

  #show() {
    this.#screen.progress(this.#answered, this.#wanted, this.#starts);
  }

  /** Show the film beside the pairs, or put it away. */
  toggleEpisode() {
    this.#screen.showEpisode(this.#screen.episodeShown ? null : this.#episode);
  }
}
