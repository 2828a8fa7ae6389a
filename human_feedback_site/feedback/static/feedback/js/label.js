// The labeling page: one pair, one answer, next pair.

import { Api, Away, OtherAccount, Refused, SignedOut, newUuid } from "./api.js";
import { listenToButtons, listenToKeys } from "./controls.js";
import { Outbox } from "./outbox.js";
import { Player } from "./player.js";
import { Prefetch } from "./prefetch.js";
import { Screen } from "./screen.js";

const POLL_MS = 2_500;
const RENEW_MS = 10_000;
// Nobody judges two clips faster than this: a second press within it was meant for the pair before.
const SETTLE_MS = 400;

class Labeling {
  constructor(page) {
    this.experiment = page.experiment;
    this.screen = new Screen(page.messages);
    this.player = new Player(this.screen.frames);
    const api = new Api(page);
    this.outbox = new Outbox(api);
    this.prefetch = new Prefetch(api, () => this.#unsavedLeases());
    this.siteState = "running";
    this.saved = page.answered;
    this.last = new Kept(`rl-teacher.last.${page.account}.${page.experiment}`);
    this.recalling = false;
    this.stopped = false;
    this.away = false;
    this.shownAt = 0;
    this.timer = 0;
  }

  start() {
    this.#listen();
    for (const lease of this.#unsavedLeases()) this.prefetch.answered(lease);
    this.#count();
    this.outbox.flush();
    this.#refill();
  }

  /** One answer by screen side. */
  answer(choice) {
    const pair = this.player.pair;
    if (this.screen.state !== "judging" || performance.now() - this.shownAt < SETTLE_MS) return;
    if (this.player.blocked) {
      this.player.restart();
      return;
    }
    if (!pair.playable && choice !== "cant_tell") {
      this.screen.say("unplayable");
      return;
    }
    const uuid = newUuid();
    const response_ms = Math.round(performance.now() - this.shownAt);
    this.screen.flash(choice);
    this.last.value = uuid;
    // The answer is kept before anything else happens; then its pair leaves the screen (`#added`).
    this.outbox.put({ kind: "label", experiment: this.experiment, uuid, lease: pair.lease.uuid, choice, response_ms });
  }

  /** Take the last answer back; its pair returns to the screen as soon as the site has agreed. */
  undo() {
    if (this.recalling || !["judging", "loading", "empty", "offline", "paused"].includes(this.screen.state)) return;
    if (!this.last.value) {
      this.screen.say("nothing_to_undo");
      return;
    }
    this.recalling = true;
    this.#render();
    const label = this.last.value;
    this.last.value = null;
    this.outbox.put({ kind: "undo", experiment: this.experiment, uuid: newUuid(), label });
  }

  replay() {
    this.player.restart();
  }

  #listen() {
    listenToKeys(this);
    listenToButtons(this);
    this.outbox.addEventListener("added", ({ detail }) => this.#added(detail.entry));
    this.outbox.addEventListener("change", () => this.#count());
    this.outbox.addEventListener("elsewhere", () => this.#refill());
    this.outbox.addEventListener("saved", ({ detail }) => this.#saved(detail));
    this.outbox.addEventListener("refused", ({ detail }) => this.#refused(detail));
    this.outbox.addEventListener("away", () => this.#away());
    this.outbox.addEventListener("stopped", ({ detail }) => this.#failed(detail.error));
    this.prefetch.addEventListener("reply", ({ detail }) => this.#replied(detail));
    this.prefetch.addEventListener("ready", () => this.#fillScreen());
    this.prefetch.addEventListener("lost", () => this.#lost());
    this.prefetch.addEventListener("failed", ({ detail }) => this.#failed(detail));
    this.prefetch.addEventListener("slow", () => this.screen.say("clips_away"));
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.#resume();
    });
    addEventListener("beforeunload", (event) => this.outbox.volatile && event.preventDefault());
    // Signing in again may have happened in another tab.
    addEventListener("focus", () => this.stopped && this.#resume());
  }

  #resume() {
    this.outbox.flush();
    this.#refill();
  }

  /** Ask for leases now, and again after a while for as long as the page is looked at. */
  async #refill() {
    clearTimeout(this.timer);
    if (document.hidden || this.siteState === "gone") return;
    await this.prefetch.refill();
    clearTimeout(this.timer);
    if (!this.stopped) this.timer = setTimeout(() => this.#refill(), this.player.pair ? RENEW_MS : POLL_MS);
  }

  /** Away with the pair on screen, on with the next. A closed experiment shows no more pairs. */
  #next() {
    const pair = this.siteState === "running" ? this.prefetch.take() : null;
    if (!pair) this.prefetch.shown = null;
    this.player.show(pair)?.discard();
    this.shownAt = performance.now();
    this.#render();
  }

  #fillScreen() {
    if (this.player.pair || this.recalling) {
      this.#render();
      return;
    }
    this.#next();
    // The site gives away prefetched pairs before shown ones, so it should know that this one is shown.
    if (this.player.pair) this.#refill();
  }

  #lost() {
    if (this.siteState === "running") this.screen.say("lost");
    this.#next();
  }

  #replied(reply) {
    this.stopped = false;
    this.siteState = reply.state;
    this.saved = reply.answered;
    this.screen.prompt(reply.prompt);
    this.screen.waitingFor(reply.state === "running" ? reply.waiting_for : null);
    this.#connected();
    this.#count();
    this.#fillScreen();
  }

  #connected() {
    this.away = this.outbox.away;
    this.screen.connection(this.away ? "away" : "fine");
  }

  async #saved({ entry, reply }) {
    this.#connected();
    if (entry.experiment !== this.experiment) return;
    this.saved = reply.answered;
    this.#count();
    if (entry.kind === "undo") await this.#recall(reply.lease);
    this.#refill();
  }

  async #recall(lease) {
    const pair = lease && (await this.prefetch.recall(lease));
    this.recalling = false;
    if (!lease) this.screen.say("undone_closed");
    if (pair && pair !== this.player.pair) {
      this.prefetch.interrupt(pair, this.player.pair);
      this.player.show(pair);
      this.shownAt = performance.now();
    }
    this.#fillScreen();
  }

  #refused({ entry, error }) {
    this.screen.say(entry.kind === "undo" ? "undo_refused" : "answer_refused", error.message);
    if (entry.uuid === this.last.value) this.last.value = null;
    this.recalling = false;
    this.#fillScreen();
  }

  #away() {
    if (this.recalling) this.screen.say("undo_later");
    this.recalling = false;
    this.away = true;
    this.screen.connection("away");
    this.#render();
  }

  #failed(error) {
    if (error instanceof Away) this.#away();
    else if (error instanceof SignedOut) this.#stop("signed-out");
    else if (error instanceof OtherAccount) this.#stop("other-account");
    else if (error instanceof Refused) this.siteState = "gone";
    else throw error;
    this.#render();
  }

  #stop(dialog) {
    this.stopped = true;
    this.recalling = false;
    this.screen.connection(dialog);
  }

  /** An answer was given, here or in another tab that holds the same pairs. */
  #added({ kind, lease }) {
    if (kind !== "label") return;
    if (this.player.pair?.lease.uuid === lease) this.#next();
    this.prefetch.answered(lease);
  }

  #unsavedLeases() {
    return this.outbox.entries.filter((entry) => entry.kind === "label").map((entry) => entry.lease);
  }

  #count() {
    const unsaved = this.outbox.entries;
    const here = unsaved.filter((entry) => entry.experiment === this.experiment);
    const change = here.reduce((sum, entry) => sum + (entry.kind === "label" ? 1 : -1), 0);
    this.screen.answered(this.saved + change);
    this.screen.unsaved(unsaved.length);
  }

  #render() {
    this.screen.state = this.#state();
  }

  #state() {
    if (this.siteState === "gone") return "gone";
    if (this.recalling) return "recalling";
    if (this.player.pair) return "judging";
    if (this.siteState !== "running") return this.siteState;
    if (this.away) return "offline";
    return this.prefetch.loading || !this.prefetch.asked ? "loading" : "empty";
  }
}

/** A string that survives a reload of this tab, where the browser allows that. */
class Kept {
  #key;
  #value = null;

  constructor(key) {
    this.#key = key;
    try {
      this.#value = sessionStorage.getItem(key);
    } catch {
      // It lives as long as the page.
    }
  }

  get value() {
    return this.#value;
  }

  set value(value) {
    this.#value = value;
    try {
      if (value === null) sessionStorage.removeItem(this.#key);
      else sessionStorage.setItem(this.#key, value);
    } catch {
      // It lives as long as the page.
    }
  }
}

new Labeling(JSON.parse(document.getElementById("page").textContent)).start();
