// The keys of the labeling page's shortcuts, which each labeler can change.

import { all, element } from "../dom.js";
import { Kept } from "./kept.js";
import { KINDS } from "./kinds.js";

/**
 * @import { Kind } from "./kinds.js"
 *
 * @typedef {string} Shortcut name of a choice's key, or of an action
 */

/**
 * Values of `key` in keyboard events, with letters in lower case, after `Shift+` if Shift is held.
 * @type {Readonly<Record<Shortcut, string>>}
 */
const DEFAULTS = {
  ...Object.assign({}, ...Object.values(KINDS).map(({ defaults }) => defaults)),
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
const SHORTCUTS = Object.keys(DEFAULTS);
const CHOICE_KEYS = new Set(Object.values(KINDS).flatMap(({ keys }) => Object.keys(keys)));
const SHIFT = "Shift+";
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

const LETTER = /^\p{Letter}$/u;
const LATIN_LETTER = /^\p{Script=Latin}$/u;
const ASCII = /^[ -~]$/;
/** Characters of a US keyboard by the `code` of keyboard events, except those of letters and digits. */
const US_KEYS = new Map(Object.entries({ Comma: ",", Period: ".", Slash: "/" }));

/**
 * Return what a pressed key may be stored as, the most exact first: with Shift, and without it.
 * @param {KeyboardEvent} event
 */
export function keysOf(event) {
  const keys = typedBy(event);
  return event.shiftKey ? [...keys.filter(mayHaveShift).map((key) => SHIFT + key), ...keys] : keys;
}

/**
 * Return what a pressed key types, with letters in lower case. Unless that is a Latin letter, the character that the key
 * has on a US keyboard follows, so that shortcuts work in every keyboard layout and input method.
 * @param {KeyboardEvent} event
 */
function typedBy({ key, code, shiftKey }) {
  const typed = key.length === 1 ? key.toLowerCase() : key;
  if (LATIN_LETTER.test(typed)) return [typed];
  if (code === "Slash" && shiftKey) return [typed, "?"];
  const us = /^(Key|Digit).$/.test(code) ? code.slice(-1).toLowerCase() : US_KEYS.get(code);
  return us ? [typed, us] : [typed];
}

/** Return the key to store for a shortcut: one that every layout has, if possible. @param {KeyboardEvent} event */
export function keyToStore(event) {
  const [typed, us = typed] = typedBy(event);
  const key = ASCII.test(typed) ? typed : us;
  return event.shiftKey && mayHaveShift(key) ? SHIFT + key : key;
}

/** True for keys that are the same key with Shift, such as arrows and letters, but not digits. @param {string} key */
function mayHaveShift(key) {
  return key.length > 1 || LETTER.test(key);
}

/** Return a key without Shift. @param {string} key */
function bare(key) {
  return key.startsWith(SHIFT) ? key.slice(SHIFT.length) : key;
}

/** True for keys that type a character other than a space. @param {string} key */
function isCharacter(key) {
  return bare(key).length === 1 && key !== " ";
}

/** Return a key as assistive tools know it. @param {string} key */
function spoken(key) {
  if (key === " ") return "Space";
  return bare(key).length === 1 ? key.slice(0, -1) + key.slice(-1).toUpperCase() : key;
}

/** True if a shortcut is in use for a kind of questions. @param {Kind} kind @param {Shortcut} shortcut */
function isUsed({ keys }, shortcut) {
  return shortcut in keys || !CHOICE_KEYS.has(shortcut);
}

/** True if two shortcuts are in use for the same questions. @param {Shortcut} one @param {Shortcut} other */
function together(one, other) {
  const kinds = Object.values(KINDS);
  return ![one, other].every((each) => CHOICE_KEYS.has(each)) || kinds.some(({ keys }) => one in keys && other in keys);
}

/**
 * Give a shortcut a key. Those that have this key already, and are in use for the same questions, get its old key.
 * @param {Record<Shortcut, string>} keys changed in place
 * @param {Shortcut} shortcut
 * @param {string} key
 * @returns {Shortcut[]} the others
 */
function give(keys, shortcut, key) {
  const users = SHORTCUTS.filter((each) => each !== shortcut && keys[each] === key && together(each, shortcut));
  for (const user of users) keys[user] = keys[shortcut];
  keys[shortcut] = key;
  return users;
}

/**
 * The labeler's key for each shortcut, and whether single-character shortcuts are on. No two shortcuts that are in use for
 * the same questions share a key.
 */
export class Keys {
  #kept;
  #space;
  /** @type {Record<Shortcut, string>} */
  #keys;
  #box = element("character-keys", HTMLInputElement);

  /**
   * @param {string} account whose keys these are
   * @param {string} space label of the space bar
   * @param {Kind} kind of the question on screen
   */
  constructor(account, space, kind) {
    this.kind = kind;
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
    return SHORTCUTS.find((each) => this.#keys[each] === key && isUsed(this.kind, each)) ?? null;
  }

  /** Return a key as the page shows it. @param {string} key */
  label(key) {
    const plain = bare(key);
    const label = LABELS.get(plain) ?? (plain === " " ? this.#space : plain.toUpperCase());
    return plain === key ? label : `⇧${label}`;
  }

  /**
   * Give a shortcut a new key. A shortcut that has this key already gets the old one in exchange.
   * @param {Shortcut} shortcut
   * @param {string} key
   * @returns {string | null} the old key if it was exchanged with a shortcut of the question on screen
   */
  change(shortcut, key) {
    const old = this.#keys[shortcut];
    const users = give(this.#keys, shortcut, key);
    this.#store();
    return users.some((each) => isUsed(this.kind, each)) ? old : null;
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
      const key = this.#keys[each.dataset.key ?? ""];
      const shown = each.tagName === "KBD";
      if (shown) each.textContent = this.label(key);
      if (each.dataset.unless) each.hidden = each.dataset.unless === each.textContent; // says what is beside it anyway
      if (shown || each.dataset.keyRow !== undefined) each.classList.toggle("character", isCharacter(key));
      else if (isCharacter(key) && !this.#box.checked) each.removeAttribute("aria-keyshortcuts");
      else each.setAttribute("aria-keyshortcuts", spoken(key));
    }
  }
}

/** Changed keys, and whether single-character shortcuts are on, as the browser stores them. @param {string} account */
function keptFor(account) {
  const characters = new Kept(`rl-teacher.character-keys.${account}`);
  return { keys: new Kept(`rl-teacher.keys.${account}`), characters };
}

/** True if an account has not turned off single-character shortcuts. @param {string} account */
export function usesCharacters(account) {
  return keptFor(account).characters.value !== "off";
}

/** True if a key press is a shortcut of an account. @param {Shortcut} shortcut @param {KeyboardEvent} event @param {string} account */
export function isShortcut(shortcut, event, account) {
  const key = stored(keptFor(account).keys)[shortcut];
  return keysOf(event).includes(key) && (!isCharacter(key) || usesCharacters(account));
}

/**
 * Return the stored keys with the original ones for the other shortcuts, as if they were changed one after the other: the
 * browser may have stored a key before another shortcut got it.
 * @param {Kept} kept
 */
function stored(kept) {
  const keys = { ...DEFAULTS };
  for (const [shortcut, key] of read(kept.value)) give(keys, shortcut, key);
  return keys;
}

/** Return the valid keys among those stored in the browser. @param {string | null} value @returns {[Shortcut, string][]} */
function read(value) {
  try {
    const stored = Object.entries(JSON.parse(value ?? "{}"));
    return stored.filter(([shortcut, key]) => shortcut in DEFAULTS && isAllowed(key));
  } catch {
    return [];
  }
}

/** True for keys that a shortcut may have. @param {unknown} key */
export function isAllowed(key) {
  return typeof key === "string" && (bare(key).length === 1 || LABELS.has(bare(key)));
}
