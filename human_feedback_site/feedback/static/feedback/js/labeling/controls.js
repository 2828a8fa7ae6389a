// Keyboard shortcuts and buttons. One press is one action: key repeat is ignored except for stepping frames.

/**
 * @import { Keys } from "./keys.js"
 * @import { ChoiceKey, Press } from "./kinds.js"
 * @typedef {Record<string, (button?: HTMLElement) => void>} Actions functions by name, called with the pressed button
 */

const MAY_REPEAT = ["back", "forward"];
const PRESSES_BUTTONS = [" ", "Enter"];
const TYPING = "input, select, textarea, [contenteditable]";

/**
 * @param {(press: Press) => void} answer
 * @param {Actions} actions
 * @param {Pick<Keys, "kind" | "shortcutOf">} keys
 */
export function listenToKeys(answer, actions, keys) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || isOn(event, TYPING)) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") actions.clear();
    const shortcut = keys.shortcutOf(event);
    if (!shortcut) return;
    // On a focused button these keys press the button, as everywhere else.
    if (PRESSES_BUTTONS.includes(event.key) && isOn(event, "button, a, summary, video")) return;
    event.preventDefault();
    if (event.repeat && !MAY_REPEAT.includes(shortcut)) return;
    const press = keys.kind.keys[/** @type {ChoiceKey} */ (shortcut)];
    if (press) answer(press);
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
 * Handle clicks on all buttons, whose `data-choice` or `data-action` names what they do, and on the clips.
 * @param {(press: Press) => void} answer
 * @param {(place: number, shift: boolean) => void} point called for a click on the clip in a place, counted from 0
 * @param {Actions} actions
 */
export function listenToButtons(answer, point, actions) {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element && event.target.closest("[data-choice], [data-place], [data-action]");
    if (!(button instanceof HTMLElement)) return;
    // Remove the focus after a mouse click, so that the space bar replays the clips instead of pressing the button.
    if (event.detail > 0) button.blur();
    const { choice, place, action } = button.dataset;
    if (choice) answer(/** @type {Press} */ (choice));
    else if (place) point(Number(place), event.shiftKey);
    else actions[action ?? ""](button);
  });
}
