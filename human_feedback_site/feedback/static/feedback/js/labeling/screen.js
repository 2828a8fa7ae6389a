// What the labeling page shows. Everything here writes to the page; nothing decides.

const TOAST_MS = 4_000;
const FLASH_MS = 180;
// As the style sheet has it.
const NARROW = "(max-width: 40rem) and (orientation: portrait)";

export class Screen {
  #messages;
  #toastTimer = 0;
  #episodes = [];
  #main = document.querySelector("main");
  /** False while the site is away, or has ended. */
  reachable = true;

  /** @param {Record<string, string>} messages texts in the reader's language */
  constructor(messages) {
    this.#messages = messages;
    this.frames = { left: element("frame-left"), right: element("frame-right") };
  }

  /**
   * loading | judging | practice | feedback | recalling | empty | offline | unreachable | paused | finished | stopped |
   * gone; the style sheet shows the panel of that name.
   */
  get state() {
    return this.#main.dataset.state;
  }

  set state(state) {
    if (state === this.state) return;
    this.#main.dataset.state = state;
    for (const button of document.querySelectorAll("[data-choice]")) {
      // Not `disabled`: a disabled button loses the keyboard's focus, and the next pair would have to be searched for.
      button.setAttribute("aria-disabled", String(!["judging", "practice"].includes(state)));
    }
    this.#fillStrip();
    const pairsLeft = ["judging", "practice", "feedback", "recalling"].includes(state);
    for (const [name, is] of [["pairs-left", pairsLeft], ["no-pairs-left", !pairsLeft]]) {
      document.querySelector(`[data-${name}]`).hidden = !is;
    }
    element("panel-status").textContent = document.querySelector(`[data-panel="${state}"] h2`)?.textContent ?? "";
  }

  prompt(text) {
    if (element("prompt").textContent !== text) element("prompt").textContent = text;
  }

  /** What a choice is called where the clips are side by side. */
  nameOf(choice) {
    return this.#messages.choices[choice];
  }

  /** What a choice is called on the stage, where a narrow window has one clip above the other. */
  #nameHere(choice) {
    const { choices, choices_narrow } = this.#messages;
    return (matchMedia(NARROW).matches && choices_narrow[choice]) || choices[choice];
  }

  answered(count) {
    element("answered").textContent = String(Math.max(count, 0));
    for (const each of document.querySelectorAll("[data-answered]")) each.textContent = String(Math.max(count, 0));
  }

  /** Answers a minute; null while there are too few to tell. */
  pace(perMinute) {
    element("pace").hidden = perMinute === null;
    element("pace").querySelector("b").textContent = perMinute === null ? "" : perMinute.toFixed(perMinute < 9.95 ? 1 : 0);
  }

  /** What the site does not have yet. @param {(entry) => string | undefined} obstacle why one is stuck */
  unsaved(entries, obstacle) {
    element("unsaved").hidden = entries.length === 0;
    for (const each of document.querySelectorAll("[data-unsaved]")) each.textContent = String(entries.length);
    for (const each of document.querySelectorAll("[data-all-saved]")) each.hidden = entries.length > 0;
    for (const each of document.querySelectorAll("[data-unsaved-note]")) each.hidden = entries.length === 0;
    element("unsaved-list").replaceChildren(...entries.map((entry) => this.#unsavedItem(entry, obstacle(entry))));
    if (entries.length === 0) element("unsaved-dialog").close();
  }

  #unsavedItem(entry, obstacle) {
    const item = element("unsaved-item").content.firstElementChild.cloneNode(true);
    item.querySelector("time").textContent = new Date(entry.at).toLocaleTimeString(document.documentElement.lang);
    item.querySelector("b").textContent = this.#nameHere(entry.choice ?? entry.kind);
    item.querySelector(".obstacle").textContent = obstacle ?? "";
    const discard = item.querySelector("[data-action]");
    discard.hidden = !obstacle;
    discard.dataset.uuid = entry.uuid;
    return item;
  }

  showUnsaved() {
    element("unsaved-dialog").showModal();
  }

  /**
   * How many pairs of everybody have an answer, of how many wanted (null: no limit).
   * @param {boolean} starts whether training starts with the last of them
   */
  progress(answered, wanted, starts) {
    element("progress").hidden = !wanted;
    if (!wanted) return;
    const bar = element("progress").querySelector("progress");
    bar.max = wanted;
    bar.value = Math.min(answered, wanted);
    const text = starts ? this.#messages.of_start : this.#messages.of_all;
    element("progress-text").textContent = filled(text, { answered: bar.value, wanted });
  }

  /** Videos of whole episodes, the first of training first; seen where there is nothing to judge. */
  strip(episodes) {
    this.#episodes = episodes;
    this.#fillStrip();
  }

  #fillStrip() {
    for (const strip of document.querySelectorAll("[data-strip]")) {
      const panel = strip.closest("[data-panel]").dataset.panel;
      strip.hidden = this.#episodes.length === 0;
      if (panel !== this.state) {
        strip.querySelector("ul").replaceChildren(); // nothing plays unseen
        continue;
      }
      const shown = [...strip.querySelectorAll("li")].map((item) => item.dataset.step);
      const steps = this.#episodes.map(({ step }) => String(step));
      // The same videos go on playing.
      if (shown.join() !== steps.join()) strip.querySelector("ul").replaceChildren(...this.#episodes.map((each) => this.#stripItem(each)));
    }
  }

  #stripItem({ step, url }) {
    const [item, video, caption] = ["li", "video", "p"].map((name) => document.createElement(name));
    item.dataset.step = step;
    Object.assign(video, { muted: true, loop: true, autoplay: true, playsInline: true, src: url });
    caption.textContent = filled(this.#messages.step, { step: step.toLocaleString(document.documentElement.lang) });
    video.setAttribute("aria-label", caption.textContent);
    item.append(video, caption);
    return item;
  }

  episodeAvailable(is) {
    for (const each of document.querySelectorAll("[data-needs=episode]")) each.hidden = !is;
  }

  get episodeShown() {
    return !element("episode").hidden;
  }

  /** The film of a whole episode beside the pairs; null puts it away. */
  showEpisode(episode) {
    const video = element("episode-video");
    element("episode").hidden = episode === null;
    document.querySelector(".tools [data-action=episode]").setAttribute("aria-pressed", String(episode !== null));
    element("episode-step").textContent = episode ? episode.step.toLocaleString(document.documentElement.lang) : "";
    if (episode) video.src = episode.url;
    else video.removeAttribute("src");
    video.load();
  }

  /** Which practice pair is on the stage; null at the end of the round. */
  practice(number, of) {
    element("practice-note").hidden = number === null;
    element("practice-at").textContent = `${number} / ${of}`;
  }

  /** What the answer to a practice pair was worth, in the state "feedback"; null puts it away. */
  feedback(example, choice) {
    for (const [side, frame] of Object.entries(this.frames)) frame.classList.toggle("better", side === example?.better);
    if (!example) return;
    const isRight = choice === example.better;
    element("feedback").classList.toggle("right", isRight);
    const { right_answer, other_answer } = this.#messages;
    element("feedback-verdict").textContent = isRight ? right_answer : `${other_answer} ${this.#nameHere(example.better)}`;
    element("feedback-text").textContent = example.explanation;
    element("feedback").querySelector("button").focus();
  }

  /** That answers were careless of late. */
  warn(is) {
    element("warning").hidden = !is;
  }

  suggestPause(is) {
    element("break").hidden = !is;
  }

  offerFinish(is) {
    element("finish").hidden = !is;
  }

  /** For screen readers: what was answered. */
  announce(choice) {
    element("said").textContent = `${this.#nameHere(choice)}. ${this.#messages.next_pair}`;
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

  /** Whether there is something to go on with while the site cannot be reached. */
  pairsAreHere(are) {
    document.querySelector("[data-action=anyway]").hidden = !are;
  }

  /** Links that lead nowhere while the site is away, or has ended, are put away. */
  siteIsThere(is) {
    this.reachable = is;
    for (const link of document.querySelectorAll("[data-needs-site]")) link.hidden = !is;
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

/** A text with values in the places of their names in braces. */
function filled(text, values) {
  return text.replace(/{(\w+)}/g, (_, name) => values[name]);
}

function element(id) {
  return document.getElementById(id);
}
