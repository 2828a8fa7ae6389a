// What the labeling page shows. Everything here writes to the page; nothing decides.

const TOAST_MS = 4_000;
const FLASH_MS = 180;

export class Screen {
  #messages;
  #toastTimer = 0;
  #main = document.querySelector("main");

  /** @param {Record<string, string>} messages texts in the reader's language */
  constructor(messages) {
    this.#messages = messages;
    this.frames = { left: element("frame-left"), right: element("frame-right") };
  }

  /** loading | judging | recalling | empty | offline | paused | finished | gone; the style sheet shows the panel of that name. */
  get state() {
    return this.#main.dataset.state;
  }

  set state(state) {
    if (state === this.state) return;
    this.#main.dataset.state = state;
    for (const button of document.querySelectorAll("[data-choice]")) {
      // Not `disabled`: a disabled button loses the keyboard's focus, and the next pair would have to be searched for.
      button.setAttribute("aria-disabled", String(state !== "judging"));
    }
    element("panel-status").textContent = document.querySelector(`[data-panel="${state}"] h2`)?.textContent ?? "";
  }

  prompt(text) {
    if (element("prompt").textContent !== text) element("prompt").textContent = text;
  }

  answered(count) {
    element("answered").textContent = String(Math.max(count, 0));
    for (const each of document.querySelectorAll("[data-answered]")) each.textContent = String(Math.max(count, 0));
  }

  unsaved(count) {
    element("unsaved").hidden = count === 0;
    for (const each of document.querySelectorAll("[data-unsaved]")) each.textContent = String(count);
  }

  waitingFor(count) {
    for (const each of document.querySelectorAll("[data-waiting]")) {
      each.hidden = !count;
      each.querySelector("b").textContent = String(count ?? "");
    }
  }

  /** fine | away | signed-out | other-account */
  connection(state) {
    element("away").hidden = state !== "away";
    for (const name of ["signed-out", "other-account"]) {
      const dialog = element(name);
      if (state === name && !dialog.open) dialog.showModal();
      if (state !== name && dialog.open) dialog.close();
    }
  }

  help() {
    element("help").showModal();
  }

  /** The button that was meant lights up, also when a key was pressed. */
  flash(choice) {
    const button = document.querySelector(`.answer[data-choice="${choice}"]`);
    button.classList.add("chosen");
    setTimeout(() => button.classList.remove("chosen"), FLASH_MS);
  }

  /** A line that goes away by itself. */
  say(message, detail = "") {
    const toast = element("toast");
    toast.textContent = [this.#messages[message], detail].filter(Boolean).join(" ");
    toast.classList.add("visible");
    clearTimeout(this.#toastTimer);
    this.#toastTimer = setTimeout(() => toast.classList.remove("visible"), TOAST_MS);
  }
}

function element(id) {
  return document.getElementById(id);
}
