// Which answers can be taken back, the last one first.

/** @import { Entry } from "./outbox.js" */

const DEPTH = 20;

export class Recent {
  #labels;

  /** @param {string[]} labels what the site has, oldest first @param {Entry[]} unsaved */
  constructor(labels, unsaved) {
    this.#labels = labels;
    for (const entry of unsaved) this.add(entry);
  }

  get last() {
    return this.#labels.at(-1) ?? null;
  }

  /** An answer was given or taken back, here or in another tab. @param {Entry} entry */
  add(entry) {
    if (entry.kind === "undo") this.remove(entry.label);
    else if (!this.#labels.includes(entry.uuid)) this.#labels = [...this.#labels, entry.uuid].slice(-DEPTH);
  }

  /** @param {string} label */
  remove(label) {
    this.#labels = this.#labels.filter((each) => each !== label);
  }
}
