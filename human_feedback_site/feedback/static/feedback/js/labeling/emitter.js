/**
 * Event emitter. An exception in one listener does not affect the others.
 * @template {Record<string, unknown[]>} Events argument types by event name
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
