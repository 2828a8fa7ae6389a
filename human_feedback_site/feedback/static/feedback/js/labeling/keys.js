// The keys of the labeling page's shortcuts, which each labeler can change.

import { all, element } from "../dom.js";
import { Kept } from "./kept.js";

/**
 * @import { Choice } from "./api.js"
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

const LATIN_LETTER = /^\p{Script=Latin}$/u;
const ASCII = /^[ -~]$/;
/** Characters of a US keyboard by the `code` of keyboard events, except those of letters and digits. */
const US_KEYS = new Map(Object.entries({ Comma: ",", Period: ".", Slash: "/" }));

/**
 * Return what a pressed key types, with letters in lower case. Unless that is a Latin letter, the character that the key
 * has on a US keyboard follows, so that shortcuts work in every keyboard layout and input method.
 * @param {KeyboardEvent} event
 */
export function keysOf({ key, code, shiftKey }) {
  const typed = key.length === 1 ? key.toLowerCase() : key;
  if (LATIN_LETTER.test(typed)) return [typed];
  if (code === "Slash" && shiftKey) return [typed, "?"];
  const us = /^(Key|Digit).$/.test(code) ? code.slice(-1).toLowerCase() : US_KEYS.get(code);
  return us ? [typed, us] : [typed];
}

/** Return the key to store for a shortcut: one that every layout has, if possible. @param {KeyboardEvent} event */
export function keyToStore(event) {
  const [typed, us = typed] = keysOf(event);
  return ASCII.test(typed) ? typed : us;
}

/** True for keys that type a character other than a space. @param {string} key */
function isCharacter(key) {
  return key.length === 1 && key !== " ";
}

/** The labeler's key for each shortcut, and whether single-character shortcuts are on. No two shortcuts share a key. */
export class Keys {
  #kept;
  #space;
  /** @type {Record<Shortcut, string>} */
  #keys;
  #box = element("character-keys", HTMLInputElement);

  /** @param {string} account whose keys these are @param {string} space label of the space bar */
  constructor(account, space) {
    const { keys, characters } = keptFor(account);
    this.#kept = keys;
    this.#space = space;
    this.#keys = stored(keys);
    // Users of speech input or similar assistive tools can turn single-character shortcuts off.
    this.#box.checked = characters.value !== "off";
    this.#box.addEventListener("change", () => {
      characters.value = this.#box.checked ? "on" : "off";
      this.#render();
    });
    this.#render();
  }

  /** Return the shortcut for a key press, unless it is turned off. @param {KeyboardEvent} event */
  shortcutOf(event) {
    const key = keysOf(event).find((each) => this.#userOf(each));
    return key === undefined || (isCharacter(key) && !this.#box.checked) ? null : this.#userOf(key);
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

/** Changed keys, and whether single-character shortcuts are on, as the browser stores them. @param {string} account */
function keptFor(account) {
  const characters = new Kept(`rl-teacher.character-keys.${account}`);
  return { keys: new Kept(`rl-teacher.keys.${account}`), characters };
}

/** True if a key press is a shortcut of an account. @param {Shortcut} shortcut @param {KeyboardEvent} event @param {string} account */
export function isShortcut(shortcut, event, account) {
  const { keys, characters } = keptFor(account);
  const key = stored(keys)[shortcut];
  return keysOf(event).includes(key) && !(isCharacter(key) && characters.value === "off");
}

/** Return the stored keys with the original ones for the other shortcuts. @param {Kept} kept */
function stored(kept) {
  const keys = { ...DEFAULTS, ...read(kept.value) };
  return new Set(Object.values(keys)).size < SHORTCUTS.length ? { ...DEFAULTS } : keys;
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
