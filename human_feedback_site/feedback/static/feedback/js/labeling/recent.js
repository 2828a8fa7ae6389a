// Answers that can be undone, the last one first.

/** @import { Entry } from "./outbox.js" */

const DEPTH = 20;

export class Recent {
  #labels;

  /** @param {string[]} labels UUIDs of saved labels, oldest first @param {Entry[]} unsaved */
  constructor(labels, unsaved) {
    this.#labels = labels;
    for (const entry of unsaved) this.add(entry);
  }

  get last() {
    return this.#labels.at(-1) ?? null;
  }

  /** Add an answer, or remove an undone one; it may come from another tab. @param {Entry} entry */
  add(entry) {
    if (entry.kind === "undo") this.remove(entry.label);
    else if (!this.#labels.includes(entry.uuid)) this.#labels = [...this.#labels, entry.uuid].slice(-DEPTH);
  }

  /** @param {string} label */
  remove(label) {
    this.#labels = this.#labels.filter((each) => each !== label);
  }
}
