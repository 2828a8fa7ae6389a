// Progress of the whole experiment, and videos of the policy's latest episodes.

/**
 * @import { Api, Episode, Progress } from "./api.js"
 * @import { Choice } from "./kinds.js"
 * @import { News } from "./news.js"
 * @import { Screen } from "./screen.js"
 */

const EVERY_MS = 15_000;
const UNSEEN_MS = 30_000; // often enough to notice the end before the site shuts down with its run
// The site updates its count every ten seconds, so recent answers of this page may be missing from it for that long.
const COUNTED_AFTER_MS = 12_000;

export class Beside {
  #api;
  #screen;
  #news;
  #tell;
  /** @type {Episode | null} */
  #episode = null;
  #timer = 0;
  #answered = 0;
  /** @type {number | null} */
  #wanted = null;
  #starts = false;
  /** Times of this page's recent answers that count toward progress. @type {number[]} */
  #counted = [];

  /**
   * @param {Api} api
   * @param {Screen} screen
   * @param {News} news
   * @param {(progress: Progress) => void} tell called after each refresh
   */
  constructor(api, screen, news, tell) {
    this.#api = api;
    this.#screen = screen;
    this.#news = news;
    this.#tell = tell;
    document.addEventListener("visibilitychange", () => this.refresh());
  }

  /** True until training has started. */
  get starts() {
    return this.#starts;
  }

  /** Fetch the progress now and then every few seconds, less often while the page is hidden. */
  async refresh() {
    clearTimeout(this.#timer);
    try {
      this.#take(await this.#api.progress());
    } catch {
      // Not reported: failing requests for answers or questions tell the user already.
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.refresh(), document.hidden ? UNSEEN_MS : EVERY_MS);
  }

  /** Count an answer of this page, so that the bar moves at once. @param {Choice} choice as the labeler saw it */
  count(choice) {
    if (this.#starts && choice === "cant_tell") return; // doesn't count; a new question replaces it
    this.#counted.push(performance.now());
    this.#answered += 1;
    this.#show();
  }

  /** Uncount an answer of this page that was undone. */
  discount() {
    this.#counted = [];
    this.#answered = Math.max(0, this.#answered - 1);
    this.#show();
  }

  /** @param {Progress} progress */
  #take(progress) {
    this.#tell(progress);
    const { answered, wanted, start, episodes } = progress;
    // Use permanent URLs instead of the links in the response, which expire.
    const videos = episodes.map(({ step, answered }) => ({ step, answered, url: `${this.#api.urls.episodes}/${step}` }));
    const episode = videos.at(-1) ?? null;
    const isNew = episode?.step !== this.#episode?.step;
    this.#episode = episode;
    if (isNew && this.#screen.episodeShown) this.#screen.showEpisode(episode);
    this.#screen.episodeAvailable(episode !== null);
    this.#news.hear(episode, this.#screen.episodeShown);
    this.#screen.strip(videos);
    const now = start ?? { answered, wanted };
    this.#counted = this.#counted.filter((at) => performance.now() - at < COUNTED_AFTER_MS);
    const uncounted = this.#starts === Boolean(start) ? this.#counted.length : 0;
    // Never show more than the site's count plus this page's recent answers, some of which may not count.
    this.#answered = Math.min(Math.max(now.answered, this.#answered), now.answered + uncounted);
    [this.#wanted, this.#starts] = [now.wanted, Boolean(start)];
    this.#show();
  }

  #show() {
    this.#screen.progress(this.#answered, this.#wanted, this.#starts);
  }

  /** Show or hide the video of the latest episode. */
  toggleEpisode() {
    this.#news.close();
    this.#screen.showEpisode(this.#screen.episodeShown ? null : this.#episode);
    if (this.#screen.episodeShown) this.#news.hear(this.#episode, true);
  }
}
