// Kinds of questions: which clips they have, and which keys, buttons and clips give which choice.

/**
 * @typedef {"pair" | "graded" | "rating" | "best_worst"} KindName
 * @typedef {"clearly_left" | "slightly_left" | "left" | "equal" | "right" | "slightly_right" | "clearly_right" |
 *   "cant_tell" | "1" | "2" | "3" | "4" | "5"} Press what a button, named by its `data-choice`, stands for
 * @typedef {Press | `${number}>${number}`} Choice in the screen's terms, as the site knows it
 * @typedef {"clearly_left" | "left" | "right" | "clearly_right" | "equal" | "cant_tell" |
 *   "1" | "2" | "3" | "4" | "5"} ChoiceKey shortcut that presses a button
 *
 * @typedef {object} Kind
 * @property {Press[][]} clips for each clip in the order of the screen, the presses that call it the better one (the
 *   first is that of a click, the last that of a Shift+click), or none
 * @property {Partial<Record<ChoiceKey, Press>>} keys
 * @property {1 | 2} presses number of presses that make a choice
 */

const CANT_TELL = "cant_tell";

/** @type {Record<KindName, Kind>} */
export const KINDS = {
  pair: {
    clips: [["left"], ["right"]],
    keys: { left: "left", right: "right", equal: "equal", cant_tell: CANT_TELL },
    presses: 1,
  },
  graded: {
    clips: [["slightly_left", "clearly_left"], ["slightly_right", "clearly_right"]],
    keys: {
      left: "slightly_left",
      right: "slightly_right",
      clearly_left: "clearly_left",
      clearly_right: "clearly_right",
      equal: "equal",
      cant_tell: CANT_TELL,
    },
    presses: 1,
  },
  rating: {
    clips: [[]],
    keys: { 1: "1", 2: "2", 3: "3", 4: "4", 5: "5", cant_tell: CANT_TELL },
    presses: 1,
  },
  best_worst: {
    clips: [["1"], ["2"], ["3"], ["4"]],
    keys: { 1: "1", 2: "2", 3: "3", 4: "4", cant_tell: CANT_TELL },
    presses: 2,
  },
};

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
  // For a rating. The difference from "can't tell" is NaN.
  if (Math.abs(Number(choice) - Number(known)) <= 1) return true;
  const [ours, theirs] = [choice, known].map((each) => bestAndWorst(kind, each));
  const sameBest = ours.best >= 0 && ours.best === theirs.best;
  const sameWorst = ours.worst >= 0 && ours.worst === theirs.worst;
  return (sameBest || sameWorst) && ours.best !== theirs.worst && ours.worst !== theirs.best;
}

/** What has been pressed for the question on screen, until it makes a choice. */
export class Selection {
  #kind = KINDS.pair;
  /** @type {Press[]} */
  #pressed = [];

  /** Start again, with a question of this kind. @param {Kind} kind */
  begin(kind) {
    this.#kind = kind;
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
    if (pressed.length + 1 < this.#kind.presses) {
      this.#pressed = [...pressed, press];
      return null;
    }
    return /** @type {Choice} */ ([...pressed, press].join(">"));
  }

  /** Take back what was pressed. Returns false if that is nothing. */
  clear() {
    const had = this.#pressed.length > 0;
    this.#pressed = [];
    return had;
  }
}
