/** A string that this browser remembers, where it allows that. */
export class Kept {
  #key;

  constructor(key) {
    this.#key = key;
  }

  get value() {
    try {
      return localStorage.getItem(this.#key);
    } catch {
      return null;
    }
  }

  set value(value) {
    try {
      localStorage.setItem(this.#key, value);
    } catch {
      // It is forgotten.
    }
  }
}
