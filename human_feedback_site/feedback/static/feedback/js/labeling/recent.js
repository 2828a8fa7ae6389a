// Which answers can be taken back, the last one first.

const DEPTH = 20;

export class Recent {
  #labels;

  /** @param {string[]} labels what the site has, oldest first @param {object[]} unsaved entries of the outbox */
  constructor(labels, unsaved) {
    this.#labels = labels;
    for (const entry of unsaved) this.add(entry);
  }

  get last() {
    return this.#labels.at(-1) ?? null;
  }

  /** An answer was given or taken back, here or in another tab. */
  add({ kind, uuid, label }) {
    if (kind === "undo") this.remove(label);
    else if (!this.#labels.includes(uuid)) this.#labels = [...this.#labels, uuid].slice(-DEPTH);
  }

  remove(label) {
    this.#labels = this.#labels.filter((each) => each !== label);
  }
}
