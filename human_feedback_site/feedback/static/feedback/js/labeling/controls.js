// Keys and buttons. One press is one action: key repeat and the second half of a double click are none.

import { all, element } from "../dom.js";

/**
 * @import { Choice } from "./api.js"
 * @import { Kept } from "./kept.js"
 * @typedef {Record<string, (button?: HTMLElement) => void>} Actions by name; with the button that was pressed
 */

/** @type {Record<string, Choice>} */
const CHOICES = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "equal", ArrowDown: "cant_tell" };
/** @type {Record<string, string>} */
const ACTIONS = {
  " ": "replay",
  p: "pause",
  s: "slow",
  f: "fullscreen",
  ",": "back",
  ".": "forward",
  z: "undo",
  h: "history",
  x: "examples",
  e: "episode",
  "?": "help",
};
const MAY_REPEAT = ["back", "forward"];
const TYPING = "input, select, textarea, [contenteditable]";

/** The keys that type a character; who uses speech input or another aid that types by itself switches them off. */
export class CharacterKeys {
  #box = element("character-keys", HTMLInputElement);
  #shortcuts = [...all("[aria-keyshortcuts]")]
    .map((button) => ({ button, key: button.getAttribute("aria-keyshortcuts") ?? "" }))
    .filter(({ key }) => key.length === 1);

  /** @param {Kept} kept where the choice outlives the page */
  constructor(kept) {
    this.#box.checked = kept.value !== "off";
    this.#box.addEventListener("change", () => {
      kept.value = this.#box.checked ? "on" : "off";
      this.#render();
    });
    this.#render();
  }

  /** @param {string} key as an event has it */
  ignores(key) {
    return key.length === 1 && key !== " " && !this.#box.checked;
  }

  #render() {
    const on = this.#box.checked;
    document.body.classList.toggle("no-character-keys", !on);
    for (const { button, key } of this.#shortcuts) {
      if (on) button.setAttribute("aria-keyshortcuts", key);
      else button.removeAttribute("aria-keyshortcuts");
    }
  }
}

/**
 * @param {(choice: Choice) => void} answer
 * @param {Actions} actions
 * @param {CharacterKeys} characters
 */
export function listenToKeys(answer, actions, characters) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || isOn(event, TYPING)) return;
    if (document.querySelector("dialog[open]")) return;
    if (characters.ignores(event.key)) return;
    const choice = CHOICES[event.key];
    const action = ACTIONS[event.key.toLowerCase()];
    // On a focused button the space bar presses the button, as everywhere else.
    if (!choice && !action) return;
    if (event.key === " " && isOn(event, "button, a, summary, video")) return;
    event.preventDefault();
    if (event.repeat && !MAY_REPEAT.includes(action)) return;
    if (choice) answer(choice);
    else actions[action]();
  });
}

/**
 * Browsers leave the focus in a dialog that was closed until they paint again: until then it is nowhere.
 * @param {Event} event
 * @param {string} selector
 */
function isOn({ target }, selector) {
  return target instanceof Element && target.closest(selector) !== null && !target.closest("dialog:not([open])");
}

/**
 * Buttons say by `data-choice` or `data-action` what they do.
 * @param {(choice: Choice) => void} answer
 * @param {Actions} actions
 */
export function listenToButtons(answer, actions) {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element && event.target.closest("[data-choice], [data-action]");
    if (!(button instanceof HTMLElement)) return;
    // A mouse leaves no focus behind, so that the space bar means "again" and not "press that button once more".
    if (event.detail > 0) button.blur();
    const choice = Object.values(CHOICES).find((each) => each === button.dataset.choice);
    if (choice) answer(choice);
    else actions[button.dataset.action ?? ""](button);
  });
}
