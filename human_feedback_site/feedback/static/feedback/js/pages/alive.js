// Says on every page but the labeling page, which says more, that the site can't be reached: it may have stopped.

import { element } from "../dom.js";

const EVERY_MS = 15_000;
const TIMEOUT_MS = 10_000;

/** Show or hide the line. @param {boolean} is */
export function reached(is) {
  element("gone").hidden = is;
}

async function look() {
  setTimeout(look, EVERY_MS);
  if (document.hidden || document.querySelector("[data-state]:not([data-state=finished])")) return; // see live.js
  try {
    const url = element("gone").dataset.livez ?? "";
    reached((await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) })).ok);
  } catch {
    reached(false);
  }
}

setTimeout(look, EVERY_MS);
