// Display of the labeling page: writes to the page and makes no decisions.

import { all, copied, counted, element, filled, localized, part } from "../dom.js";
import { KINDS, bestAndWorst, isClose } from "./kinds.js";

/**
 * @import { Counted } from "../dom.js"
 * @import { Episode, Example } from "./api.js"
 * @import { KeyText } from "./key_editor.js"
 * @import { Choice, Press } from "./kinds.js"
 * @import { KeptEntry } from "./outbox.js"
 *
 * @typedef {"answer_refused" | "answer_stuck" | "clips_away" | "nothing_to_undo" | "notices_blocked" | "practice_done" | "still_away" |
 *   "undo_later" | "undo_refused" | "undone_closed"} SameLine message that disappears by itself
 * @typedef {"lost" | "unplayable"} KindLine the same, in words that fit the kind of question
 * @typedef {SameLine | "clip" | "close_answer" | "everyone" | "other_answer" | "of_all" | "of_start" | "of_yours" |
 *   "notice" | "right_answer" | "slow_minutes" | "slow_seconds" | "step"} Text
 * @typedef {Record<Choice | "undo", string>} Names
 * @typedef {Record<Text | KeyText, string> & Record<"answers" | "left" | "taught", Counted>} Texts
 * @typedef {Texts & { choices: Names, choices_narrow: Partial<Names> }} Messages
 * @typedef {SameLine | KindLine} Line
 *
 * @typedef {"loading" | "judging" | "held" | "practice" | "feedback" | "recalling" | "empty" | "offline" |
 *   "unreachable" | "paused" | "finished" | "stopped" | "done" | "gone"} State name of the panel that the style sheet
 *   shows; none in the first moments of a wait ("held"), in which the last question stays in sight
 */

const TOAST_MS = 4_000;
const FLASH_MS = 180;
const LEAST_REST_S = 3; // a shorter wait isn't worth a message
// Same value as in the style sheet.
const STACKED = "(max-width: 40rem) and (max-aspect-ratio: 11/20)";

export class Screen {
  #messages;
  #toastTimer = 0;
  /** @type {Episode[]} */
  #episodes = [];
  /** Answers given and wanted, by the labeler and by all labelers. @type {{ answered: number, wanted: number | null }} */
  #own = { answered: 0, wanted: null };
  #whole = this.#own;
  /** Time in ms that an answer takes the labeler; null if not known. @type {number | null} */
  #msEach = null;
  #title = document.title;
  #starts = false;
  #main = part(document, "main");
  #clips = [...all(".stage .clip")];
  /** @type {string} */
  #kind;
  /** @type {State} */
  #state = "loading";
  /** False while the site can't be reached or has shut down. */
  reachable = true;

  /** @param {Messages} messages texts in the user's language @param {string} kind */
  constructor(messages, kind) {
    this.#messages = messages;
    /** Elements that contain the clips, in the order of the screen. */
    this.frames = this.#clips.map((clip) => part(clip, ".frame"));
    this.#kind = kind;
    this.#renderKind();
  }

  /** The kind of the question on screen. */
  get kind() {
    return KINDS[this.#kind];
  }

  /** @param {string} kind */
  ask(kind) {
    if (kind === this.#kind) return;
    this.#kind = kind;
    this.#renderKind();
  }

  #renderKind() {
    const { clips } = this.kind;
    Object.assign(this.#main.dataset, { kind: this.#kind, size: clips.length });
    for (const each of all("[data-kinds]")) each.hidden = !each.dataset.kinds?.split(" ").includes(this.#kind);
    for (const [place, clip] of this.#clips.entries()) {
      const [press] = clips[place] ?? [];
      clip.hidden = place >= clips.length;
      const name =
        press && this.kind.presses === 1 ? this.nameOf(press) : filled(this.#messages.clip, { number: place + 1 });
      clip.setAttribute("aria-label", name);
    }
    element("scrub").setAttribute("aria-label", this.#ofKind.position ?? "");
    this.#renderDisabled();
  }

  /** Buttons and texts of the kind of question on screen. */
  get #answers() {
    return part(document, `.answers[data-kinds~="${this.#kind}"]`);
  }

  get #ofKind() {
    return this.#answers.dataset;
  }

  #renderDisabled() {
    const open = ["judging", "practice"].includes(this.state);
    // Not `disabled`, because a disabled button loses the keyboard focus and the labeler would have to find it again.
    for (const button of all("[data-choice]")) button.setAttribute("aria-disabled", String(!open));
    for (const [place, clip] of this.#clips.entries()) {
      clip.setAttribute("aria-disabled", String(!open || !this.kind.clips[place]?.length));
    }
  }

  /** @returns {State} */
  get state() {
    return this.#state;
  }

  set state(state) {
    if (state === this.state) return;
    this.#main.dataset.state = this.#state = state;
    this.#renderDisabled();
    this.#fillStrip();
    const someLeft = ["judging", "practice", "feedback", "recalling"].includes(state);
    part(document, "[data-some-left]").hidden = !someLeft;
    part(document, "[data-none-left]").hidden = someLeft;
    const title = document.querySelector(`[data-panel="${state}"] h2`);
    element("panel-status").textContent = title instanceof HTMLElement ? title.innerText : "";
  }

  /** @param {string} text */
  prompt(text) {
    if (element("prompt").textContent !== text) element("prompt").textContent = text;
  }

  /** Return the text of a choice for clips shown side by side. @param {Choice} choice */
  nameOf(choice) {
    return this.#messages.choices[choice];
  }

  /**
   * Return the text of a choice for the current layout: some windows show one clip above the other.
   * @param {keyof Names} choice
   */
  #nameHere(choice) {
    const { choices, choices_narrow } = this.#messages;
    return (matchMedia(STACKED).matches && choices_narrow[choice]) || choices[choice];
  }

  /**
   * Show the labeler's own number of answers.
   * @param {number} count
   * @param {number | null} wanted number of answers that the invitation asks for; null for no limit
   * @param {number | null} msEach time in ms that an answer takes; null if not known
   */
  answered(count, wanted, msEach) {
    this.#msEach = msEach;
    this.#own = { answered: Math.max(count, 0), wanted };
    element("answered").textContent = String(this.#own.answered);
    for (const each of all("[data-answered]")) each.textContent = String(this.#own.answered);
    this.#showProgress();
  }

  /** Show in the tab's title how many questions wait for the labeler. @param {number} count */
  waiting(count) {
    document.title = count ? `(${localized(count)}) ${this.#title}` : this.#title;
  }

  /**
   * Show the number and list of unsaved answers.
   * @param {KeptEntry[]} entries
   * @param {(entry: KeptEntry) => string | undefined} obstacle returns why an entry is stuck
   */
  unsaved(entries, obstacle) {
    element("unsaved").hidden = entries.length === 0;
    for (const each of all("[data-unsaved]")) each.textContent = String(entries.length);
    for (const each of all("[data-all-saved]")) each.hidden = entries.length > 0;
    for (const each of all("[data-unsaved-note]")) each.hidden = entries.length === 0;
    element("unsaved-list").replaceChildren(...entries.map((entry) => this.#unsavedItem(entry, obstacle(entry))));
    if (entries.length === 0) element("unsaved-dialog", HTMLDialogElement).close();
  }

  /** @param {KeptEntry} entry @param {string} [obstacle] */
  #unsavedItem(entry, obstacle) {
    const item = copied("unsaved-item");
    part(item, "time").textContent = new Date(entry.at).toLocaleTimeString(document.documentElement.lang);
    part(item, "b").textContent = this.#nameHere(entry.kind === "undo" ? entry.kind : entry.choice);
    part(item, ".obstacle").textContent = obstacle ?? "";
    const discard = part(item, "[data-action]");
    discard.hidden = !obstacle;
    discard.dataset.uuid = entry.uuid;
    return item;
  }

  showUnsaved() {
    element("unsaved-dialog", HTMLDialogElement).showModal();
  }

  /**
   * Show the progress of the whole experiment.
   * @param {number} answered number of questions with an answer, from all labelers
   * @param {number | null} wanted number of answers wanted; null for no limit
   * @param {boolean} starts true if training starts after the last of them
   */
  progress(answered, wanted, starts) {
    this.#whole = { answered, wanted };
    this.#starts = starts;
    this.#showProgress();
  }

  /** Show what is left for the labeler first, if the invitation says it, and then the progress of all labelers. */
  #showProgress() {
    const [own, whole] = [this.#own, this.#whole].map(({ answered, wanted }) =>
      wanted ? { answered: Math.min(answered, wanted), wanted } : null,
    );
    const shown = own ?? whole;
    element("progress").hidden = !shown;
    if (!shown) return;
    const bar = part(element("progress"), "progress", HTMLProgressElement);
    [bar.max, bar.value] = [shown.wanted, shown.answered];
    const { everyone, of_all, of_start, of_yours } = this.#messages;
    const ofAll = whole ? filled(this.#starts ? of_start : of_all, whole) : "";
    element("progress-text").textContent = this.#withTimeLeft(own ? filled(of_yours, own) : ofAll, shown);
    element("progress-of-all").hidden = !own || !whole;
    element("progress-of-all").textContent = filled(everyone, { progress: ofAll });
  }

  /**
   * Add the time that the rest takes, if the labeler gives it alone.
   * @param {string} progress
   * @param {{ answered: number, wanted: number }} rest
   */
  #withTimeLeft(progress, { answered, wanted }) {
    if (!this.#msEach || answered >= wanted || answered > this.#own.answered) return progress;
    const minutes = Math.max(1, Math.round(((wanted - answered) * this.#msEach) / 60_000));
    return filled(counted(this.#messages.left, minutes), { progress });
  }

  /**
   * Set the videos of full episodes, oldest first, which are shown while there is nothing to judge.
   * @param {Episode[]} episodes
   */
  strip(episodes) {
    this.#episodes = episodes;
    this.#fillStrip();
  }

  #fillStrip() {
    for (const strip of all("[data-strip]")) {
      const list = part(strip, "ul");
      strip.hidden = this.#episodes.length === 0;
      if (!strip.closest(`[data-panel=${this.state}]`)) {
        list.replaceChildren(); // don't play videos that aren't visible
        continue;
      }
      const shown = [...list.querySelectorAll("li")].map((item) => item.dataset.step);
      const steps = this.#episodes.map(({ step }) => String(step));
      // Unchanged videos keep playing.
      if (shown.join() === steps.join()) continue;
      list.replaceChildren(...this.#episodes.map((each) => this.#stripItem(each)));
      list.scrollLeft = list.scrollWidth; // the newest is last
    }
  }

  /** @param {Episode} episode */
  #captionOf({ step, answered }) {
    const made = filled(this.#messages.step, { step: localized(step) });
    return answered === null ? made : `${made} · ${counted(this.#messages.answers, answered)}`;
  }

  /** @param {Episode} episode */
  #stripItem(episode) {
    const { step, url } = episode;
    const item = document.createElement("li");
    const video = document.createElement("video");
    const caption = document.createElement("p");
    item.dataset.step = String(step);
    Object.assign(video, { muted: true, loop: true, autoplay: true, playsInline: true, src: url });
    caption.textContent = this.#captionOf(episode);
    video.setAttribute("aria-label", caption.textContent);
    item.append(video, caption);
    return item;
  }

  /** @param {boolean} is */
  episodeAvailable(is) {
    for (const each of all("[data-needs=episode]")) each.hidden = !is;
  }

  get episodeShown() {
    return !element("episode").hidden;
  }

  /** Show the video of a full episode next to the clips; null hides it. @param {Episode | null} episode */
  showEpisode(episode) {
    const video = element("episode-video", HTMLVideoElement);
    element("episode").hidden = episode === null;
    part(document, ".tools [data-action=episode]").setAttribute("aria-pressed", String(episode !== null));
    element("episode-caption").textContent = episode ? this.#captionOf(episode) : "";
    if (episode) video.src = episode.url;
    else video.removeAttribute("src");
    video.load();
  }

  /**
   * Show which practice question is on screen; null at the end of the round.
   * @param {{ number: number, of: number } | null} at
   */
  practice(at) {
    element("practice-note").hidden = at === null;
    element("practice-at").textContent = at ? `${at.number} / ${at.of}` : "";
  }

  /**
   * Show the feedback to a practice answer (in the state "feedback"); null hides it.
   * @param {Example | null} example
   * @param {Choice} [choice]
   */
  feedback(example, choice) {
    this.#mark(example?.better);
    if (!example || !choice) return;
    const isRight = choice === example.better;
    const nearly = isClose(this.kind, choice, example.better);
    element("feedback").classList.toggle("right", isRight || nearly);
    const { right_answer, close_answer, other_answer } = this.#messages;
    const other = `${nearly ? close_answer : other_answer} ${this.#nameHere(example.better)}`;
    element("feedback-verdict").textContent = isRight ? right_answer : other;
    element("feedback-text").textContent = example.explanation;
    part(element("feedback"), "button").focus();
  }

  /** Mark the clips that a choice calls the best and the worst. @param {string} [choice] */
  #mark(choice = "") {
    const { best, worst } = bestAndWorst(this.kind, choice);
    for (const [place, frame] of this.frames.entries()) {
      frame.classList.toggle("better", place === best);
      frame.classList.toggle("worse", place === worst);
    }
  }

  /** Show what was pressed first for a choice that needs two presses; null if nothing was. @param {Press | null} first */
  selected(first) {
    if (this.kind.presses === 1) return;
    this.#mark(first ?? "");
    for (const button of this.#answers.querySelectorAll("[aria-pressed]")) {
      button.setAttribute("aria-pressed", String(button.getAttribute("data-choice") === first));
    }
    const step = part(this.#answers, "[data-second]");
    step.textContent = first ? filled(step.dataset.second ?? "", { first }) : step.dataset.first ?? "";
  }

  /** Show or hide the warning about careless answers. @param {boolean} is */
  warn(is) {
    element("warning").hidden = !is;
  }

  /** @param {boolean} is */
  suggestPause(is) {
    element("break").hidden = !is;
  }

  /** @param {boolean} is */
  offerFinish(is) {
    element("finish").hidden = !is;
  }

  /** Announce the answer to screen readers. @param {Choice} choice */
  announce(choice) {
    element("said").textContent = `${this.#nameHere(choice)}. ${this.#ofKind.next}`;
  }

  /** Announce to screen readers that an answer was undone and its question is on screen again. */
  announceUndone() {
    element("said").textContent = this.#ofKind.undone ?? "";
  }

  /** Show how long the next question will take on a slow connection. @param {number | null} ms null if not known */
  rest(ms) {
    const seconds = Math.ceil((ms ?? 0) / 1000);
    const { slow_seconds, slow_minutes } = this.#messages;
    element("rest").hidden = seconds < LEAST_REST_S;
    element("rest").textContent =
      seconds < 90 ? filled(slow_seconds, { seconds }) : filled(slow_minutes, { minutes: Math.round(seconds / 60) });
  }

  /** @param {number | null} count */
  waitingFor(count) {
    for (const each of all("[data-waiting]")) {
      each.hidden = !count;
      part(each, "b").textContent = String(count ?? "");
    }
  }

  /** @param {"fine" | "away" | "signed-out" | "other-account"} state */
  connection(state) {
    element("away").hidden = state !== "away";
    for (const name of ["signed-out", "other-account"]) {
      const dialog = element(name, HTMLDialogElement);
      if (state === name && !dialog.open) dialog.showModal();
      if (state !== name && dialog.open) dialog.close();
    }
  }

  /** Say that the site can't save answers, instead of that there is no connection. @param {boolean} is */
  failing(is) {
    element("away-lost").hidden = is;
    element("away-failing").hidden = !is;
  }

  /** Offer to continue with loaded questions while the site can't be reached. @param {boolean} are */
  questionsAreHere(are) {
    part(document, "[data-action=anyway]").hidden = !are;
  }

  /** Hide links that don't work while the site can't be reached or has shut down. @param {boolean} is */
  siteIsThere(is) {
    this.reachable = is;
    for (const link of all("[data-needs-site]")) link.hidden = !is;
  }

  help() {
    element("help", HTMLDialogElement).showModal();
  }

  /** Highlight a pressed button, also after a key press. @param {Press} press */
  flash(press) {
    const button = part(this.#answers, `.answer[data-choice="${press}"]`);
    button.classList.add("chosen");
    setTimeout(() => button.classList.remove("chosen"), FLASH_MS);
  }

  /** Show a message that disappears by itself. @param {Line} message @param {string} [detail] */
  say(message, detail = "") {
    const toast = element("toast");
    toast.textContent = [this.#ofKind[message] ?? this.#messages[/** @type {SameLine} */ (message)], detail].filter(Boolean).join(" ");
    toast.classList.add("visible");
    clearTimeout(this.#toastTimer);
    this.#toastTimer = setTimeout(() => toast.classList.remove("visible"), TOAST_MS);
  }
}
