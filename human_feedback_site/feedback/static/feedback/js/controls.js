// Keys and buttons. One press is one action: key repeat and the second half of a double click are none.

const CHOICES = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "equal", ArrowDown: "cant_tell" };
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

/** @param {(choice: string) => void} answer @param {Record<string, () => void>} actions by name */
export function listenToKeys(answer, actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest?.(TYPING)) return;
    if (document.querySelector("dialog[open]")) return;
    const choice = CHOICES[event.key];
    const action = ACTIONS[event.key.toLowerCase()];
    // On a focused button the space bar presses the button, as everywhere else.
    if (!choice && !action) return;
    if (event.key === " " && event.target.closest?.("button, a, summary, video")) return;
    event.preventDefault();
    if (event.repeat && !MAY_REPEAT.includes(action)) return;
    if (choice) answer(choice);
    else actions[action]();
  });
}

/** Buttons say by `data-choice` or `data-action` what they do. */
export function listenToButtons(answer, actions) {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-choice], [data-action]");
    if (!button) return;
    // A mouse leaves no focus behind, so that the space bar means "again" and not "press that button once more".
    if (event.detail > 0) button.blur();
    if (button.dataset.choice) answer(button.dataset.choice);
    else actions[button.dataset.action](button);
  });
}
