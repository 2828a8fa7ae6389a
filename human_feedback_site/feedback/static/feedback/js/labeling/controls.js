// Keyboard shortcuts and buttons. One press is one action: key repeat is ignored except for stepping frames.

import { all, element } from "../dom.js";

/**
 * @import { Choice } from "./api.js"
 * @import { Kept } from "./kept.js"
 * @typedef {Record<string, (button?: HTMLElement) => void>} Actions functions by name, called with the pressed button
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

/** Single-character shortcuts, which users of speech input or similar assistive tools can turn off. */
export class CharacterKeys {
  #box = element("character-keys", HTMLInputElement);
  #shortcuts = [...all("[aria-keyshortcuts]")]
    .map((button) => ({ button, key: button.getAttribute("aria-keyshortcuts") ?? "" }))
    .filter(({ key }) => key.length === 1);

  /** @param {Kept} kept stores the setting in the browser */
  constructor(kept) {
    this.#box.checked = kept.value !== "off";
    this.#box.addEventListener("change", () => {
      kept.value = this.#box.checked ? "on" : "off";
      this.#render();
    });
    this.#render();
  }

  /** Return true if a key is a shortcut that is turned off. @param {string} key `key` of a keyboard event */
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
    if (!choice && !action) return;
    // On a focused button the space bar presses the button, as everywhere else.
    if (event.key === " " && isOn(event, "button, a, summary, video")) return;
    event.preventDefault();
    if (event.repeat && !MAY_REPEAT.includes(action)) return;
    if (choice) answer(choice);
    else actions[action]();
  });
}

/**
 * Return true if an event's target matches a selector, ignoring closed dialogs. Browsers leave the focus in a dialog
 * that was just closed until the next paint.
 * @param {Event} event
 * @param {string} selector
 */
function isOn({ target }, selector) {
  return target instanceof Element && target.closest(selector) !== null && !target.closest("dialog:not([open])");
}

/**
 * Handle clicks on all buttons, whose `data-choice` or `data-action` names what they do.
 * @param {(choice: Choice) => void} answer
 * @param {Actions} actions
 */
export function listenToButtons(answer, actions) {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element && event.target.closest("[data-choice], [data-action]");
    if (!(button instanceof HTMLElement)) return;
    // Remove the focus after a mouse click, so that the space bar replays the clips instead of pressing the button.
    if (event.detail > 0) button.blur();
    const choice = Object.values(CHOICES).find((each) => each === button.dataset.choice);
    if (choice) answer(choice);
    else actions[button.dataset.action ?? ""](button);
  });
}
