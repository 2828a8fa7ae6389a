/** String stored in localStorage; nothing is stored if the browser forbids it. */
export class Kept {
  #key;

  /** @param {string} key */
  constructor(key) {
    this.#key = key;
  }

  /** @returns {string | null} */
  get value() {
    try {
      return localStorage.getItem(this.#key);
    } catch {
      return null;
    }
  }

  /** @param {string} value */
  set value(value) {
    try {
      localStorage.setItem(this.#key, value);
    } catch {
      // Not stored.
    }
  }
}
