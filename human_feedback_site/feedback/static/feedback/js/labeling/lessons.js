// Examples with their answers, and a practice round before the first real question.

import { copied, element, part } from "../dom.js";
import { Downloads } from "./downloads.js";
import { Kept } from "./kept.js";
import { KINDS, bestAndWorst } from "./kinds.js";
import { Player, Question } from "./player.js";

/**
 * @import { Api, Example, Page } from "./api.js"
 * @import { Choice } from "./kinds.js"
 * @import { Screen, State } from "./screen.js"
 */

const ATTEMPTS = 3;

const downloads = new Downloads();

/** Examples and practice round of an experiment; either may be empty. */
export class Lessons {
  #counts;
  #api;
  #player;
  #screen;
  #learned;
  /** The current practice round. @type {Practice | null} */
  practice = null;

  /** @param {Page} page @param {Api} api @param {Player} player @param {Screen} screen */
  constructor(page, api, player, screen) {
    this.#counts = page.lessons;
    this.#api = api;
    this.#player = player;
    this.#screen = screen;
    this.#learned = new Kept(`rl-teacher.learned.${page.account}.${page.experiment}`);
  }

  /** True if there are lessons that have not been completed in this browser. */
  get due() {
    return this.#counts.shown + this.#counts.practice > 0 && !this.#learned.value;
  }

  /** Show the examples, then the practice round. Resolves when both are over; rejects if they can't be fetched. */
  async teach() {
    const examples = await this.#api.examples();
    if (this.#counts.shown) await this.#show(examples);
    const asked = examples.filter((each) => each.practice);
    if (this.#counts.practice && asked.length) await this.#practice(asked);
    this.#learned.value = "yes";
  }

  /** Show only the examples. Resolves when they are closed; rejects if they can't be fetched. */
  async show() {
    if (this.#counts.shown) await this.#show(await this.#api.examples());
  }

  /** @param {Example[]} examples */
  #show(examples) {
    return showExamples(examples.filter((each) => !each.practice), (choice) => this.#screen.nameOf(choice));
  }

  /** @param {Example[]} examples */
  async #practice(examples) {
    /** @type {Promise<void>} */
    const over = new Promise((resolve) => {
      this.practice = new Practice(examples, this.#player, this.#screen, resolve);
      this.practice.start();
    });
    await over;
    this.practice = null;
    this.#screen.say("practice_done");
  }
}

/** Return an example's decoded question; a clip that can't be fetched is unplayable. @param {Example} example */
async function questionOf(example, clips = clipsOf(example)) {
  return new Question(null, example.kind, await clips).decode();
}

/** @param {Example} example */
function clipsOf(example) {
  return Promise.all(example.items.map(({ url }) => blobAt(url)));
}

/** @param {string} url */
function blobAt(url) {
  let attempts = 0;
  return downloads.fetch(url, () => attempts++ < ATTEMPTS);
}

/**
 * Show the dialog of examples. Resolves when it is closed.
 * @param {Example[]} examples
 * @param {(choice: Choice) => string} nameOf
 */
async function showExamples(examples, nameOf) {
  const dialog = element("examples", HTMLDialogElement);
  const shown = examples.map((example) => {
    const item = copied("example");
    const frames = example.items.map((_, place) => {
      const frame = copied("example-clip");
      frame.dataset.number = String(place + 1);
      return frame;
    });
    const { best, worst } = bestAndWorst(KINDS[example.kind], example.better);
    frames[best]?.classList.add("better");
    frames[worst]?.classList.add("worse");
    part(item, ".clips").dataset.size = String(frames.length);
    part(item, ".clips").append(...frames);
    part(item, ".verdict").textContent = nameOf(example.better);
    part(item, ".explanation").textContent = example.explanation;
    return { item, player: new Player(frames), example };
  });
  element("example-list").replaceChildren(...shown.map(({ item }) => item));
  dialog.showModal();
  for (const { player, example } of shown) questionOf(example).then((question) => player.show(question));
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  for (const { player } of shown) player.show(null)?.release();
}

/** Practice round: questions with known answers, shown one by one in place of real ones. No answers are sent. */
class Practice {
  #examples;
  #player;
  #screen;
  #end;
  /**
   * Clips of the questions. All are fetched when the first question is shown, because links expire and people take breaks.
   * @type {(Promise<(Blob | null)[]> | undefined)[]}
   */
  #clips = [];
  #at = 0;
  /** @type {State & ("loading" | "practice" | "feedback")} */
  state = "loading";

  /**
   * @param {Example[]} examples
   * @param {Player} player
   * @param {Screen} screen
   * @param {() => void} end called after the last question
   */
  constructor(examples, player, screen, end) {
    this.#examples = examples;
    this.#player = player;
    this.#screen = screen;
    this.#end = end;
  }

  async start() {
    this.#enter("loading");
    const question = await questionOf(this.#examples[this.#at], this.#clips[this.#at]);
    if (!this.#clips.length) this.#clips = this.#examples.map((example, at) => (at ? clipsOf(example) : undefined));
    this.#player.show(question)?.release();
    this.#screen.practice({ number: this.#at + 1, of: this.#examples.length });
    this.#enter("practice");
  }

  /** @param {Choice} choice */
  answer(choice) {
    if (this.state !== "practice") return;
    this.#enter("feedback");
    this.#screen.feedback(this.#examples[this.#at], choice);
  }

  /** Continue with the next practice question, or end the round. */
  next() {
    if (this.state !== "feedback") return;
    this.#screen.feedback(null);
    this.#at += 1;
    if (this.#at < this.#examples.length) {
      this.start();
      return;
    }
    this.#player.show(null)?.release();
    this.#screen.practice(null);
    this.#end();
  }

  /** @param {Practice["state"]} state */
  #enter(state) {
    this.state = state;
    this.#screen.state = state;
  }
}
