/**
 * Something that tells what happens to it. What one listener throws reaches no other.
 * @template {Record<string, unknown[]>} Events what is told, by name
 */
export class Emitter {
  #target = new EventTarget();

  /**
   * @template {keyof Events & string} Name
   * @param {Name} name
   * @param {(...told: Events[Name]) => void} listener
   */
  on(name, listener) {
    this.#target.addEventListener(name, (event) => {
      if (event instanceof CustomEvent) listener(...event.detail);
    });
  }

  /**
   * @template {keyof Events & string} Name
   * @param {Name} name
   * @param {Events[Name]} told
   */
  emit(name, ...told) {
    this.#target.dispatchEvent(new CustomEvent(name, { detail: told }));
  }
}
