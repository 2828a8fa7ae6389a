// Main script of the labeling page: shows a question, takes the answer, and moves to the next question.

import { element, written } from "../dom.js";
import "../media.js";
import { Api, Away, Failing, NoConsent, OtherAccount, Refused, SignedOut, newUuid } from "./api.js";
import { Beside } from "./beside.js";
import { listenToButtons, listenToKeys } from "./controls.js";
import { Kept } from "./kept.js";
import { KeyEditor } from "./key_editor.js";
import { Keys } from "./keys.js";
import { Selection } from "./kinds.js";
import { Lessons } from "./lessons.js";
import { News } from "./news.js";
import { Notices } from "./notices.js";
import { Outbox } from "./outbox.js";
import { Pace, Patience } from "./pace.js";
import { Player } from "./player.js";
import { Prefetch } from "./prefetch.js";
import { Presence } from "./presence.js";
import { Recent } from "./recent.js";
import { Screen } from "./screen.js";
import { Transport } from "./transport.js";

/**
 * @import { ExperimentState, Lease, Leases, Notice, Page, Progress } from "./api.js"
 * @import { Actions } from "./controls.js"
 * @import { Choice, Press } from "./kinds.js"
 * @import { Entry, Saved } from "./outbox.js"
 * @import { State } from "./screen.js"
 */

const POLL_MS = 2_500;
const RENEW_MS = 10_000;
// Ignore answers sooner than this after a new question appears: they were meant for the previous one.
const SETTLE_MS = 400;
// A shorter wait for the next question isn't worth a panel: the last question stays in sight.
const HELD_MS = 3_000;

class Labeling {
  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    this.experiment = page.experiment;
    this.screen = new Screen(page.messages, page.kind);
    this.player = new Player(this.screen.frames);
    this.transport = new Transport(this.player);
    this.api = new Api(page);
    this.outbox = new Outbox(this.api);
    this.prefetch = new Prefetch(this.api, () => this.outbox.leases);
    this.presence = new Presence();
    this.news = new News(new Kept(`rl-teacher.news.${page.account}.${page.experiment}`), page.messages.taught);
    this.beside = new Beside(this.api, this.screen, this.news, (progress) => this.#told(progress));
    this.notices = new Notices(new Kept(`rl-teacher.notices.${page.account}`));
    this.keys = new Keys(page.account, page.messages.space, this.screen.kind);
    this.selection = new Selection();
    this.lessons = new Lessons(page, this.api, this.player, this.screen);
    this.pace = new Pace(`rl-teacher.pace.${page.account}`);
    this.recent = new Recent(page.recent, this.outbox.of(this.experiment));
    /** @type {ExperimentState | "stopped" | "done" | "gone"} */
    this.siteState = "running";
    /** @type {Notice | null} */
    this.notice = null;
    this.saved = page.answered;
    this.wanted = page.wanted;
    this.recalling = false;
    this.stopped = false;
    this.away = false;
    this.retrying = false;
    this.shownAt = 0;
    this.timer = 0;
    this.holdTimer = 0;
    /** Number of questions that wait for the labeler, as the site knew it last. */
    this.waiting = 0;
    this.reason = /** @type {HTMLInputElement | null} */ (document.getElementById("reason"));
    this.patience = new Patience((isOver) => this.screen.offerFinish(isOver));
  }

  async start() {
    this.#listen();
    for (const lease of this.outbox.leases) this.prefetch.answered(lease);
    this.#count();
    this.outbox.flush();
    if (this.saved === 0 && !this.recent.last && this.lessons.due) await this.#teach();
    this.#refill();
    this.beside.refresh();
  }

  /** Take a press of a key or button, or a click on a clip; the last press of an answer completes it. @param {Press} press */
  press(press) {
    if (performance.now() - this.shownAt < SETTLE_MS) return;
    const { practice } = this.lessons;
    const { question } = this.player;
    if (practice ? practice.state !== "practice" : this.screen.state !== "judging" || !question?.lease) return;
    if (!practice && this.player.blocked) {
      this.player.restart();
      return;
    }
    if (!practice && !question?.playable && press !== "cant_tell") {
      this.screen.say("unplayable");
      return;
    }
    const choice = this.selection.take(press);
    this.screen.selected(this.selection.first);
    if (practice) {
      if (choice) practice.answer(choice);
      return;
    }
    this.screen.flash(press);
    if (choice && question?.lease) this.#answer(question.lease, choice);
  }

  /** @param {string} lease @param {Choice} choice */
  #answer(lease, choice) {
    const response_ms = Math.round(performance.now() - this.shownAt);
    const shown_ms = Math.min(this.player.shownMs, response_ms);
    this.screen.announce(choice);
    if (this.pace.answered()) this.screen.suggestPause(true);
    // The answer is stored first; then the question leaves the screen (see `#added`).
    const reason = this.reason?.value.trim() ?? "";
    const answer = { lease, choice, response_ms, shown_ms, reason };
    this.outbox.put({ kind: "label", experiment: this.experiment, uuid: newUuid(), ...answer });
  }

  /** Take a click on a clip. @param {number} place counted from 0 @param {boolean} shift */
  #point(place, shift) {
    const press = this.screen.kind.clips[place].at(shift ? -1 : 0);
    if (press) this.press(press);
    else if (this.player.blocked) this.player.restart();
  }

  /** Take back the first of two presses. Returns false if there is nothing to take back. */
  #clear() {
    const had = this.selection.clear();
    if (had) this.screen.selected(null);
    return had;
  }

  /** Undo the first of two presses, or the last answer; its question returns once the site has confirmed. */
  undo() {
    if (this.#clear()) return;
    if (this.recalling || !["judging", "held", "loading", "empty", "offline", "paused"].includes(this.screen.state)) return;
    if (this.lessons.practice) return;
    const label = this.recent.last;
    if (!label) {
      this.screen.say("nothing_to_undo");
      return;
    }
    this.recalling = true;
    this.#render();
    this.outbox.put({ kind: "undo", experiment: this.experiment, uuid: newUuid(), label });
  }

  /** @returns {Actions} */
  #actions() {
    const frame = 1 / this.page.fps;
    const { player, screen } = this;
    const editor = new KeyEditor(this.keys, this.page.messages);
    return {
      undo: () => this.undo(),
      clear: () => this.#clear(),
      replay: () => player.restart(),
      pause: () => player.toggle(),
      slow: () => player.slow(),
      back: () => player.seek(player.position - frame),
      forward: () => player.seek(player.position + frame),
      fullscreen: () => this.transport.fullscreen(),
      help: () => screen.help(),
      history: () => screen.reachable && location.assign(this.page.urls.history),
      examples: () => this.#showExamples(),
      episode: () => this.beside.toggleEpisode(),
      notify: async () => (await this.notices.toggle()) || screen.say("notices_blocked"),
      dismiss: () => this.news.close(),
      rebind: (button) => button && editor.begin(button),
      reset_keys: () => editor.reset(),
      next: () => this.lessons.practice?.next(),
      rested: () => screen.suggestPause(false),
      warned: () => screen.warn(false),
      unsaved: () => screen.showUnsaved(),
      send: () => this.outbox.flush(),
      retry: () => this.#retry(),
      anyway: () => this.#goOn(),
      discard: (button) => this.#discard(button?.dataset.uuid),
    };
  }

  #listen() {
    const answer = (/** @type {Press} */ press) => this.press(press);
    const actions = this.#actions();
    listenToKeys(answer, actions, this.keys);
    listenToButtons(answer, (place, shift) => this.#point(place, shift), actions);
    this.player.on("shown", (question) => {
      if (question) this.screen.ask(question.kind);
      this.keys.kind = this.screen.kind;
      this.selection.begin(this.screen.kind);
      this.screen.selected(null);
      if (this.reason) this.reason.value = "";
    });
    this.reason?.addEventListener("keydown", ({ key }) => ["Enter", "Escape"].includes(key) && this.reason?.blur());
    this.outbox.on("added", (entry) => this.#added(entry));
    this.outbox.on("change", () => this.#count());
    this.outbox.on("elsewhere", () => this.#refill());
    this.outbox.on("saved", (saved) => this.#saved(saved));
    this.outbox.on("refused", (entry, error) => this.#refused(entry, error));
    this.outbox.on("stuck", (entry, error) => this.#stuck(entry, error));
    this.outbox.on("away", (failing) => this.#away(failing));
    this.outbox.on("stopped", (error) => this.#failed(error));
    this.prefetch.on("reply", (reply) => this.#replied(reply));
    this.prefetch.on("ready", () => this.#fillScreen());
    this.prefetch.on("lost", () => this.#lost());
    this.prefetch.on("failed", (error) => this.#failed(error));
    this.prefetch.on("slow", () => this.screen.say("clips_away"));
    this.prefetch.on("rest", (ms) => this.screen.rest(ms));
    this.presence.on("back", () => this.#resume());
    addEventListener("beforeunload", (event) => this.outbox.volatile && event.preventDefault());
    // The user may have signed in again in another tab.
    addEventListener("focus", () => this.stopped && this.#resume());
  }

  /** Show the examples and the practice round; without a connection, skip them and start with the real questions. */
  async #teach() {
    try {
      await this.lessons.teach();
    } catch (error) {
      if (!(error instanceof Away)) throw error;
    }
    this.#render();
  }

  async #showExamples() {
    try {
      await this.lessons.show();
    } catch (error) {
      this.#failed(error);
    }
  }

  /** True if a question is on screen but the labeler seems to be gone. */
  get #isLeft() {
    return this.player.question !== null && this.presence.idle;
  }

  /** Send unsaved answers and renew leases after the labeler comes back; a question given away is replaced. */
  #resume() {
    if (this.lessons.practice) return;
    this.outbox.flush();
    this.#refill();
  }

  /** Check immediately if the site is back. */
  #retry() {
    this.retrying = true;
    this.#resume();
  }

  /** Show the loaded questions, although they may no longer need labels. */
  #goOn() {
    this.presence.doubtful = false;
    this.shownAt = performance.now();
    this.player.restart();
    this.screen.connection("away");
    this.#render();
  }

  /** Use what a page learns even while it is hidden. @param {Progress} progress */
  #told({ state, waiting }) {
    this.waiting = waiting;
    this.#countWaiting();
    if (waiting && !this.player.question) this.notices.show(this.page.messages.notice, element("prompt").innerText);
    // Drop the questions of a finished experiment.
    if (state !== "finished" || !["running", "paused"].includes(this.siteState) || this.lessons.practice) return;
    this.prefetch.refill();
  }

  /** Request leases now, and again at intervals while the page is visible. */
  async #refill() {
    clearTimeout(this.timer);
    if (document.hidden || this.siteState === "gone" || this.lessons.practice || this.#isLeft) return;
    await this.prefetch.refill();
    clearTimeout(this.timer);
    if (!this.stopped) this.timer = setTimeout(() => this.#refill(), this.player.question ? RENEW_MS : POLL_MS);
  }

  /** Replace the question on screen with the next one, or with none if the experiment isn't running. */
  #next() {
    const question = this.siteState === "running" ? this.prefetch.take() : null;
    if (!question) this.prefetch.shown = null;
    const before = this.player.show(question);
    this.shownAt = performance.now();
    this.#render();
    // Release the old question's decoders later, because that takes a while.
    if (before) setTimeout(() => before.release(), this.screen.state === "held" ? HELD_MS : 0);
  }

  #fillScreen() {
    if (this.lessons.practice) return;
    if (this.player.question || this.recalling) {
      this.#render();
      return;
    }
    this.#next();
    // Tell the site that this question is on screen, because it reassigns prefetched ones first.
    if (this.player.question) this.#refill();
  }

  #lost() {
    if (this.siteState === "running") this.screen.say("lost");
    this.#next();
  }

  /** @param {Leases} reply */
  #replied(reply) {
    this.stopped = false;
    const before = this.siteState;
    this.siteState = reply.notice === "stopped" || reply.notice === "done" ? reply.notice : reply.state;
    if (this.siteState !== before) this.beside.refresh();
    if (reply.notice !== this.notice) this.screen.warn(reply.notice === "warned");
    this.notice = reply.notice;
    this.saved = reply.answered;
    this.wanted = reply.wanted;
    this.screen.prompt(reply.prompt);
    // Before training starts, the progress bar shows this instead.
    this.screen.waitingFor(reply.state === "running" && !this.beside.starts ? reply.waiting_for : null);
    this.#connected();
    this.#count();
    this.#fillScreen();
    // Unsaved answers are sent first; meanwhile, the panel for this state links to the same page.
    if (this.siteState === "done" && !this.outbox.entries.length) location.assign(this.page.urls.done);
  }

  #connected() {
    this.presence.heard();
    this.retrying = false;
    this.away = this.outbox.away;
    this.screen.siteIsThere(!this.away);
    this.screen.connection(this.away ? "away" : "fine");
  }

  /** @param {Saved} saved */
  async #saved({ kind, entry, reply }) {
    this.#connected();
    if (entry.experiment !== this.experiment) return;
    this.saved = reply.answered;
    this.#count();
    if (kind === "undo") this.beside.discount();
    else if (reply.status === "counted") this.beside.count(entry.choice);
    if (kind === "undo") await this.#recall(reply.lease);
    this.#refill();
  }

  /** @param {Lease | null} lease */
  async #recall(lease) {
    const question = lease && (await this.prefetch.recall(lease));
    this.recalling = false;
    if (!lease) this.screen.say("undone_closed");
    if (question && question !== this.player.question) {
      this.prefetch.interrupt(question, this.player.question);
      this.player.show(question);
      this.shownAt = performance.now();
    }
    if (question) this.screen.announceUndone();
    this.#fillScreen();
  }

  /** @param {Entry} entry @param {Refused} error */
  #refused(entry, error) {
    this.screen.say(entry.kind === "undo" ? "undo_refused" : "answer_refused", error.message);
    this.recent.remove(entry.uuid);
    this.recalling = false;
    this.#fillScreen();
  }

  /** @param {Entry} entry @param {Error} error */
  #stuck(entry, error) {
    this.screen.say("answer_stuck", error.message);
    if (entry.kind === "undo") this.recalling = false;
    this.#fillScreen();
  }

  /** @param {string | undefined} uuid */
  #discard(uuid) {
    const entry = this.outbox.entries.find((each) => each.uuid === uuid);
    if (!entry) return;
    this.recent.remove(entry.uuid);
    this.outbox.discard(entry);
  }

  /** True if no more answers are needed and none is unsaved; then the site may have shut down with its run. */
  get #over() {
    return ["finished", "stopped", "done"].includes(this.siteState) && !this.outbox.entries.length;
  }

  /** @param {boolean} failing true if the site responds, but can't do its work */
  #away(failing) {
    this.screen.siteIsThere(false);
    this.screen.failing(failing);
    if (this.#over) return;
    this.presence.missed();
    if (this.recalling) this.screen.say("undo_later");
    else if (this.retrying) this.screen.say("still_away");
    this.recalling = this.retrying = false;
    this.away = true;
    // The "unreachable" panel already tells the labeler.
    this.screen.connection(this.#state() === "unreachable" ? "fine" : "away");
    this.screen.questionsAreHere(this.player.question !== null);
    this.#render();
  }

  /** @param {unknown} error */
  #failed(error) {
    if (error instanceof Away) this.#away(error instanceof Failing);
    else if (error instanceof SignedOut) this.#stop("signed-out");
    else if (error instanceof OtherAccount) this.#stop("other-account");
    else if (error instanceof NoConsent) location.reload();
    else if (error instanceof Refused) this.siteState = "gone";
    else throw error;
    this.#render();
  }

  /** @param {"signed-out" | "other-account"} dialog */
  #stop(dialog) {
    this.stopped = true;
    this.recalling = false;
    this.screen.connection(dialog);
  }

  /** Handle an answer or undo given here or in another tab, which may have the same questions. @param {Entry} entry */
  #added(entry) {
    if (entry.experiment === this.experiment) this.recent.add(entry);
    if (entry.kind !== "label") return;
    this.waiting -= 1;
    if (this.player.question?.lease === entry.lease) {
      this.#next();
      // Later, so that the next question doesn't wait for it.
      setTimeout(() => this.screen.state === "judging" && !this.prefetch.slow && this.news.show());
    }
    this.prefetch.answered(entry.lease);
  }

  #count() {
    const change = this.outbox.of(this.experiment).reduce((sum, entry) => sum + (entry.kind === "label" ? 1 : -1), 0);
    this.screen.answered(this.saved + change, this.wanted, this.pace.msEach);
    this.#countWaiting();
    this.screen.unsaved(this.outbox.entries, (entry) => this.outbox.obstacle(entry));
  }

  #countWaiting() {
    const here = this.prefetch.coming + (this.player.question ? 1 : 0);
    this.screen.waiting(this.siteState === "running" ? Math.max(here, this.waiting) : 0);
  }

  #render() {
    if (this.lessons.practice) return;
    const state = this.#held(this.#state());
    if (state === this.screen.state) return;
    this.screen.state = state;
    // Losing the connection must not restart the wait.
    if (["held", "empty", "offline", "unreachable", "loading"].includes(state)) this.patience.wait();
    else this.patience.end();
  }

  /** Return "held" instead of a wait that has just begun. @param {State} state @returns {State} */
  #held(state) {
    const isWait = ["empty", "loading", "recalling"].includes(state);
    if (isWait && this.screen.state === "judging") {
      this.holdTimer = setTimeout(() => {
        this.holdTimer = 0;
        this.#render();
      }, HELD_MS);
    }
    if (isWait && this.holdTimer) return "held";
    clearTimeout(this.holdTimer);
    this.holdTimer = 0;
    return state;
  }

  /** @returns {State} */
  #state() {
    if (this.siteState === "gone") return "gone";
    if (this.recalling) return "recalling";
    if (this.away && this.presence.doubtful && ["running", "paused"].includes(this.siteState)) return "unreachable";
    if (this.player.question) return "judging";
    if (this.siteState !== "running") return this.siteState;
    if (this.away && !this.prefetch.flowing) return "offline";
    return this.prefetch.coming || !this.prefetch.asked ? "loading" : "empty";
  }
}

new Labeling(written("page")).start();
