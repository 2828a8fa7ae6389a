// What a labeler learns from: examples with their answers, and a practice round before the first real pair.

import { Pair, Player } from "./player.js";

const FETCH_TIMEOUT_MS = 30_000;

/** The pair of an example, of clips that are fetched; one that cannot be had is unplayable. */
async function pairOf(example, clips = clipsOf(example)) {
  return new Pair({ uuid: null }, await clips).decode();
}

function clipsOf(example) {
  return Promise.all([example.left, example.right].map(({ url }) => blobAt(url)));
}

async function blobAt(url) {
  try {
    const reply = await fetch(url, { signal: AbortSignal.timeout(FETCH_TIMEOUT_MS) });
    return reply.ok ? await reply.blob() : null;
  } catch {
    return null;
  }
}

/** The dialog of examples. Resolves when it is closed. */
export async function showExamples(examples, nameOf) {
  const dialog = document.getElementById("examples");
  const template = document.getElementById("example");
  const shown = examples.map((example) => {
    const item = template.content.firstElementChild.cloneNode(true);
    const frames = { left: item.querySelector(".left .frame"), right: item.querySelector(".right .frame") };
    item.querySelector(".verdict").textContent = nameOf(example.better);
    item.querySelector(".explanation").textContent = example.explanation;
    item.querySelector(`.${example.better}`)?.classList.add("better");
    return { item, player: new Player(frames), example };
  });
  document.getElementById("example-list").replaceChildren(...shown.map(({ item }) => item));
  dialog.showModal();
  for (const { player, example } of shown) pairOf(example).then((pair) => player.show(pair));
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  for (const { player } of shown) player.show(null)?.release();
}

/** Pairs with known answers, asked one after the other on the stage of the real ones; nothing is sent. */
export class Practice {
  #examples;
  #player;
  #screen;
  #end;
  // Their links expire, and people take breaks: so all are fetched when the first is shown.
  #clips = [];
  #at = 0;
  /** loading | practice | feedback */
  state = "loading";

  /** @param {() => void} end called when the last one is done */
  constructor(examples, player, screen, end) {
    this.#examples = examples;
    this.#player = player;
    this.#screen = screen;
    this.#end = end;
  }

  async start() {
    this.#enter("loading");
    const pair = await pairOf(this.#examples[this.#at], this.#clips[this.#at]);
    if (!this.#clips.length) this.#clips = this.#examples.map((example, at) => (at ? clipsOf(example) : null));
    this.#player.show(pair)?.release();
    this.#screen.practice(this.#at + 1, this.#examples.length);
    this.#enter("practice");
  }

  answer(choice) {
    if (this.state !== "practice") return;
    this.#enter("feedback");
    this.#screen.feedback(this.#examples[this.#at], choice);
  }

  /** On to the next one, or to the real pairs. */
  next() {
    if (this.state !== "feedback") return;
    this.#screen.feedback(null);
    this.#at += 1;
    if (this.#at < this.#examples.length) {
      this.start();
      return;
    }
    this.#player.show(null)?.release();
    this.#screen.practice(null);
    this.#end();
  }

  #enter(state) {
    this.state = state;
    this.#screen.state = state;
  }
}
