// The keys of the labeling page's shortcuts, which each labeler can change.

import { all, element } from "../dom.js";

/**
 * @import { Choice } from "./api.js"
 * @import { Kept } from "./kept.js"
 *
 * @typedef {"replay" | "pause" | "slow" | "back" | "forward" | "undo" | "fullscreen" | "history" | "examples" |
 *   "episode" | "help"} Action
 * @typedef {Choice | Action} Shortcut
 */

/** Values of `key` in keyboard events, with letters in lower case. @type {Readonly<Record<Shortcut, string>>} */
const DEFAULTS = {
  left: "ArrowLeft",
  right: "ArrowRight",
  equal: "ArrowUp",
  cant_tell: "ArrowDown",
  replay: " ",
  pause: "p",
  slow: "s",
  back: ",",
  forward: ".",
  undo: "z",
  fullscreen: "f",
  history: "h",
  examples: "x",
  episode: "e",
  help: "?",
};
const SHORTCUTS = /** @type {Shortcut[]} */ (Object.keys(DEFAULTS));
/** Labels of the allowed keys that type no character. Browsers and assistive tools need the others. */
const LABELS = new Map(Object.entries({
  ArrowLeft: "←",
  ArrowRight: "→",
  ArrowUp: "↑",
  ArrowDown: "↓",
  Home: "Home",
  End: "End",
  PageUp: "PgUp",
  PageDown: "PgDn",
  Insert: "Ins",
  Delete: "Del",
  Backspace: "⌫",
  Enter: "⏎",
}));

/** Return a keyboard event's key, with letters in lower case. @param {KeyboardEvent} event */
export function keyOf({ key }) {
  return key.length === 1 ? key.toLowerCase() : key;
}

/** True for keys that type a character other than a space. @param {string} key */
function isCharacter(key) {
  return key.length === 1 && key !== " ";
}

/** The labeler's key for each shortcut, and whether single-character shortcuts are on. No two shortcuts share a key. */
export class Keys {
  #kept;
  #space;
  #keys;
  #box = element("character-keys", HTMLInputElement);

  /**
   * @param {Kept} kept stores the changed keys in the browser
   * @param {Kept} keptCharacters stores whether single-character shortcuts are on
   * @param {string} space label of the space bar
   */
  constructor(kept, keptCharacters, space) {
    this.#kept = kept;
    this.#space = space;
    this.#keys = { ...DEFAULTS, ...read(kept.value) };
    if (new Set(Object.values(this.#keys)).size < SHORTCUTS.length) this.#keys = { ...DEFAULTS };
    // Users of speech input or similar assistive tools can turn single-character shortcuts off.
    this.#box.checked = keptCharacters.value !== "off";
    this.#box.addEventListener("change", () => {
      keptCharacters.value = this.#box.checked ? "on" : "off";
      this.#render();
    });
    this.#render();
  }

  /** Return the shortcut for a key press, unless it is turned off. @param {KeyboardEvent} event */
  shortcutOf(event) {
    const key = keyOf(event);
    return isCharacter(key) && !this.#box.checked ? null : this.#userOf(key);
  }

  /** @param {string} key */
  #userOf(key) {
    return SHORTCUTS.find((each) => this.#keys[each] === key) ?? null;
  }

  /** Return a key as the page shows it. @param {string} key */
  label(key) {
    return LABELS.get(key) ?? (key === " " ? this.#space : key.toUpperCase());
  }

  /**
   * Give a shortcut a new key. A shortcut that has this key already gets the old one in exchange.
   * @param {Shortcut} shortcut
   * @param {string} key
   * @returns {string | null} the old key if it was exchanged
   */
  change(shortcut, key) {
    const [user, old] = [this.#userOf(key), this.#keys[shortcut]];
    if (user) this.#keys[user] = old;
    this.#keys[shortcut] = key;
    this.#store();
    return user && user !== shortcut ? old : null;
  }

  /** Give all shortcuts their original keys. */
  reset() {
    this.#keys = { ...DEFAULTS };
    this.#store();
  }

  #store() {
    this.#kept.value = JSON.stringify(Object.fromEntries(this.#changed));
    this.#render();
  }

  get #changed() {
    return SHORTCUTS.filter((each) => this.#keys[each] !== DEFAULTS[each]).map((each) => [each, this.#keys[each]]);
  }

  /** Show the keys on the page: elements with `data-key` name their shortcut. */
  #render() {
    document.body.classList.toggle("no-character-keys", !this.#box.checked);
    element("reset-keys").hidden = this.#changed.length === 0;
    for (const each of all("[data-key]")) {
      const key = this.#keys[/** @type {Shortcut} */ (each.dataset.key)];
      const shown = each.tagName === "KBD";
      if (shown) each.textContent = this.label(key);
      if (shown || each.dataset.keyRow !== undefined) each.classList.toggle("character", isCharacter(key));
      else if (isCharacter(key) && !this.#box.checked) each.removeAttribute("aria-keyshortcuts");
      else each.setAttribute("aria-keyshortcuts", key === " " ? "Space" : key.length === 1 ? key.toUpperCase() : key);
    }
  }
}

/** Return the valid keys among those stored in the browser. @param {string | null} value @returns {Partial<Record<Shortcut, string>>} */
function read(value) {
  try {
    const stored = Object.entries(JSON.parse(value ?? "{}"));
    return Object.fromEntries(stored.filter(([shortcut, key]) => shortcut in DEFAULTS && isAllowed(key)));
  } catch {
    return {};
  }
}

/** True for keys that a shortcut may have. @param {unknown} key */
export function isAllowed(key) {
  return typeof key === "string" && (key.length === 1 || LABELS.has(key));
}
