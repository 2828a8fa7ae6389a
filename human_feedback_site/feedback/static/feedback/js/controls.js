// Keys and buttons. One press is one action: key repeat and the second half of a double click are none.

const CHOICES = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "equal", ArrowDown: "cant_tell" };
const TYPING = "input, select, textarea, [contenteditable]";

export function listenToKeys(labeling) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest?.(TYPING)) return;
    if (document.querySelector("dialog[open]")) return;
    const act = action(event, labeling);
    if (!act) return;
    event.preventDefault();
    if (!event.repeat) act();
  });
}

function action(event, labeling) {
  if (event.key in CHOICES) return () => labeling.answer(CHOICES[event.key]);
  if (event.key === "z" || event.key === "Z") return () => labeling.undo();
  if (event.key === "?") return () => labeling.screen.help();
  // On a focused button the space bar presses the button, as everywhere else.
  if (event.key === " " && !event.target.closest?.("button, a, summary")) return () => labeling.replay();
  return null;
}

export function listenToButtons(labeling) {
  const actions = { undo: () => labeling.undo(), replay: () => labeling.replay(), help: () => labeling.screen.help() };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-choice], [data-action]");
    if (!button) return;
    // A mouse leaves no focus behind, so that the space bar means "again" and not "press that button once more".
    if (event.detail > 0) button.blur();
    if (button.dataset.choice) labeling.answer(button.dataset.choice);
    else actions[button.dataset.action]?.();
  });
}
