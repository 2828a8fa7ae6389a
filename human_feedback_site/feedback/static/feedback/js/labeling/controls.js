// Keyboard shortcuts and buttons. One press is one action: key repeat is ignored except for stepping frames.

/**
 * @import { Choice } from "./api.js"
 * @import { Keys } from "./keys.js"
 * @typedef {Record<string, (button?: HTMLElement) => void>} Actions functions by name, called with the pressed button
 */

/** @type {Choice[]} */
const CHOICES = ["left", "right", "equal", "cant_tell"];
const MAY_REPEAT = ["back", "forward"];
const PRESSES_BUTTONS = [" ", "Enter"];
const TYPING = "input, select, textarea, [contenteditable]";

/**
 * @param {(choice: Choice) => void} answer
 * @param {Actions} actions
 * @param {Keys} keys
 */
export function listenToKeys(answer, actions, keys) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || isOn(event, TYPING)) return;
    if (document.querySelector("dialog[open]")) return;
    const shortcut = keys.shortcutOf(event);
    if (!shortcut) return;
    // On a focused button these keys press the button, as everywhere else.
    if (PRESSES_BUTTONS.includes(event.key) && isOn(event, "button, a, summary, video")) return;
    event.preventDefault();
    if (event.repeat && !MAY_REPEAT.includes(shortcut)) return;
    const choice = CHOICES.find((each) => each === shortcut);
    if (choice) answer(choice);
    else actions[shortcut]();
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
    const choice = CHOICES.find((each) => each === button.dataset.choice);
    if (choice) answer(choice);
    else actions[button.dataset.action ?? ""](button);
  });
}
