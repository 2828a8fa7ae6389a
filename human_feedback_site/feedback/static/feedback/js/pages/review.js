// Review of comparisons by researchers: who answered what, and the decision, appear after their own choice.

import { all, element, part, written } from "../dom.js";
import "../media.js";
import { listenToButtons, listenToKeys } from "../labeling/controls.js";
import { isShortcut, usesCharacters } from "../labeling/keys.js";
import { KINDS, Selection } from "../labeling/kinds.js";
import { Player, Question } from "../labeling/player.js";
import { Transport } from "../labeling/transport.js";
import "./times.js";

/** @type {Record<string, string>} */
const OWN_KEYS = { j: "next", k: "previous", d: "settle" };
const SHARED = ["replay", "pause", "slow", "back", "forward", "fullscreen"];

const { account, kind: name, fps } = written("review");
const kind = KINDS[name];
const frames = [...all(".frame")];
const player = new Player(frames);
const transport = new Transport(player);
const selection = new Selection();
const buttons = all(".answers [data-choice]");

/** Play the clips in step. Until then, and if one can't be fetched, each has controls of its own. */
async function load() {
  const blobs = frames.map(async (frame) => {
    const reply = await fetch(part(frame, "video", HTMLVideoElement).src);
    if (!reply.ok) throw new Error(reply.statusText);
    return reply.blob();
  });
  player.show(await new Question(null, name, await Promise.all(blobs)).decode());
}

/** @param {string} press */
function answer(press) {
  const choice = selection.take(press);
  const pressed = (choice ?? selection.first ?? "").split(">");
  for (const button of buttons) button.setAttribute("aria-pressed", String(pressed.includes(button.dataset.choice ?? "")));
  for (const settle of all("#settle")) {
    settle.hidden = !choice || ![undefined, choice].includes(settle.dataset.only);
    part(settle, "input", HTMLInputElement).value = choice ?? "";
  }
  if (choice) element("said").hidden = false;
}

/** @param {string} selector */
function click(selector) {
  const found = document.querySelector(selector);
  if (found instanceof HTMLElement && found.checkVisibility()) found.click();
}

const step = 1 / fps;
const actions = {
  next: () => click("[rel=next]"),
  previous: () => click("[rel=prev]"),
  settle: () => click("#settle button"),
  clear: () => selection.clear(),
  replay: () => player.restart(),
  pause: () => player.toggle(),
  slow: () => player.slow(),
  back: () => player.seek(player.position - step),
  forward: () => player.seek(player.position + step),
  fullscreen: () => transport.fullscreen(),
};

/** @param {KeyboardEvent} event */
function shortcutOf(event) {
  const own = usesCharacters(account) && OWN_KEYS[event.key.toLowerCase()];
  // Sorted, so that "clearly_left", which has Shift, comes before "left".
  const names = [...Object.keys(kind.keys), ...SHARED].sort();
  return own || (names.find((each) => isShortcut(each, event, account)) ?? null);
}

selection.begin(kind);
for (const button of buttons) button.removeAttribute("aria-disabled");
listenToKeys(answer, actions, { kind, shortcutOf });
listenToButtons(answer, () => {}, actions);
load().catch(() => {}); // a video that fails is reloaded
