// Kinds of questions: which clips they have, and which keys, buttons and clips give which choice.

import { all } from "../dom.js";

/**
 * @typedef {string} Press what a button stands for: its `data-choice`
 * @typedef {string} Choice in the screen's terms, as the site knows it
 * @typedef {string} ChoiceKey shortcut that presses a button: its `data-key`
 *
 * @typedef {object} Kind
 * @property {Press[][]} clips for each clip in the order of the screen, the presses that call it the better one (the
 *   first is that of a click, the last that of a Shift+click), or none
 * @property {Record<ChoiceKey, Press>} keys
 * @property {Record<ChoiceKey, string>} defaults original key of each shortcut
 * @property {number} presses number of presses that make a choice
 */

const CANT_TELL = "cant_tell";

/** What a group of buttons says about its kind of questions. @param {HTMLElement} group @returns {Kind} */
function kindOf(group) {
  /** @type {NodeListOf<HTMLElement>} */
  const buttons = group.querySelectorAll("[data-choice]");
  const keyed = [...buttons].map((each) => [each.dataset.key, each.dataset.choice, each.getAttribute("aria-keyshortcuts")]);
  const { clips = "", presses = 1 } = group.dataset;
  return {
    clips: clips.split(" ").map((each) => each.split(",").filter(Boolean)),
    keys: Object.fromEntries(keyed),
    defaults: Object.fromEntries(keyed.map(([key, , original]) => [key, original])),
    presses: Number(presses),
  };
}

/** The kinds of questions that this page can show, by name. @type {Record<string, Kind>} */
export const KINDS = Object.fromEntries([...all(".answers")].map((group) => [group.dataset.kinds, kindOf(group)]));

/** Return the indexes of the clips that a choice calls the best and the worst, or -1. @param {Kind} kind @param {string} choice */
export function bestAndWorst({ clips }, choice) {
  const [best, worst] = choice.split(">").map((press) => clips.findIndex((each) => each.some((own) => own === press)));
  return { best, worst: worst ?? -1 };
}

/**
 * True if a choice differs from the known one, but would pass as an answer to an attention check.
 * @param {Kind} kind @param {Choice} choice @param {Choice} known
 */
export function isClose(kind, choice, known) {
  if (choice === known) return false;
  // For levels. The difference from "can't tell" is NaN.
  if (Math.abs(Number(choice) - Number(known)) <= 1) return true;
  const [ours, theirs] = [choice, known].map((each) => bestAndWorst(kind, each));
  const sameBest = ours.best >= 0 && ours.best === theirs.best;
  const sameWorst = ours.worst >= 0 && ours.worst === theirs.worst;
  return (sameBest || sameWorst) && ours.best !== theirs.worst && ours.worst !== theirs.best;
}

/** What has been pressed for the question on screen, until it makes a choice. */
export class Selection {
  #presses = 1;
  /** @type {Press[]} */
  #pressed = [];

  /** Start again, with a question of this kind. @param {Kind} kind */
  begin({ presses }) {
    this.#presses = presses;
    this.#pressed = [];
  }

  /** What was pressed first, if the choice needs more. @returns {Press | null} */
  get first() {
    return this.#pressed[0] ?? null;
  }

  /**
   * Add a press, or take it back if it is the same again. Returns the choice once it is complete.
   * @param {Press} press
   * @returns {Choice | null}
   */
  take(press) {
    const pressed = this.#pressed;
    this.#pressed = [];
    if (press === CANT_TELL) return press;
    if (pressed.includes(press)) return null;
    if (pressed.length + 1 < this.#presses) {
      this.#pressed = [...pressed, press];
      return null;
    }
    return [...pressed, press].join(">");
  }

  /** Take back what was pressed. Returns false if that is nothing. */
  clear() {
    const had = this.#pressed.length > 0;
    this.#pressed = [];
    return had;
  }
}
