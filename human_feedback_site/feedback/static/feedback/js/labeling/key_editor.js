// The part of the Help dialog that changes keys: press a key's button, then the new key.

import { element, filled } from "../dom.js";
import { isAllowed, keyToStore } from "./keys.js";

/**
 * @import { Keys, Shortcut } from "./keys.js"
 *
 * @typedef {"key_hint" | "key_wanted" | "key_refused" | "key_changed" | "keys_swapped" | "keys_reset" | "space"} KeyText
 */

const MODIFIERS = ["Shift", "Control", "Alt", "AltGraph", "Meta", "CapsLock", "Fn"];

export class KeyEditor {
  #keys;
  #messages;
  /** The pressed button. @type {HTMLElement | null} */
  #button = null;

  /** @param {Keys} keys @param {Record<KeyText, string>} messages */
  constructor(keys, messages) {
    this.#keys = keys;
    this.#messages = messages;
    document.addEventListener("keydown", (event) => this.#take(event), { capture: true });
    document.addEventListener("pointerdown", () => this.#cancel());
    element("help").addEventListener("close", () => this.#cancel());
  }

  /** Wait for the new key of a button's shortcut. @param {HTMLElement} button */
  begin(button) {
    this.#release();
    this.#button = button;
    button.setAttribute("aria-pressed", "true");
    this.#say("key_wanted");
  }

  reset() {
    this.#release();
    this.#keys.reset();
    this.#say("keys_reset");
  }

  /** @param {KeyboardEvent} event */
  #take(event) {
    if (!this.#button || event.ctrlKey || event.altKey || event.metaKey || MODIFIERS.includes(event.key)) return;
    if (event.key === "Tab") {
      this.#cancel();
      return;
    }
    event.preventDefault();
    event.stopImmediatePropagation();
    if (event.repeat) return; // the key that pressed the button
    const key = keyToStore(event);
    if (key === "Escape") this.#cancel();
    else if (isAllowed(key)) this.#change(this.#button.dataset.shortcut ?? "", key);
    else this.#say("key_refused");
  }

  /** @param {Shortcut} shortcut @param {string} key */
  #change(shortcut, key) {
    this.#release();
    const exchanged = this.#keys.change(shortcut, key);
    if (exchanged === null) this.#say("key_changed", key);
    else this.#say("keys_swapped", key, exchanged);
  }

  #cancel() {
    if (!this.#button) return;
    this.#release();
    this.#say("key_hint");
  }

  #release() {
    this.#button?.setAttribute("aria-pressed", "false");
    this.#button = null;
  }

  /** @param {KeyText} name @param {string[]} keys */
  #say(name, ...keys) {
    const [key, other] = keys.map((each) => this.#keys.label(each));
    element("key-note").textContent = filled(this.#messages[name], { key, other });
  }
}
