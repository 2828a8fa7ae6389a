// Keeps the experiment page up to date: fetches the elements marked `data-live` and applies the differences.

import { element } from "../dom.js";
import "../media.js";
import { Patience } from "../patience.js";
import { reached } from "./alive.js";
import { follow } from "./films.js";
import { morph } from "./morph.js";
import { showLocalTimes } from "./times.js";

const EVERY_MS = 5_000;
const TIMEOUT_MS = 15_000;
const NOT_FOR_US = [401, 403, 404];

let etag = "";
let timer = 0;
let asking = false;
let signedOut = false;

/** Update now, and then at intervals while the page is visible and the experiment isn't finished. */
async function refresh() {
  clearTimeout(timer);
  if (asking || signedOut || document.hidden || isFinished()) return;
  asking = true;
  try {
    reached(await update());
  } catch {
    reached(false);
  }
  asking = false;
  timer = setTimeout(refresh, EVERY_MS);
}

/** Update the page; resolves to whether the site could answer. */
async function update() {
  const patience = new Patience(TIMEOUT_MS);
  const reply = await fetch(`live${location.search}`, {
    headers: { "If-None-Match": etag },
    cache: "no-store",
    redirect: "manual",
    signal: patience.signal,
  });
  if (reply.type === "opaqueredirect" || NOT_FOR_US.includes(reply.status)) {
    signedOut = true;
    element("signed-out").hidden = false;
  }
  if (reply.status !== 200) {
    patience.cancel();
    return signedOut || reply.status === 304;
  }
  const text = await (await patience.whole(reply)).text();
  const fresh = new DOMParser().parseFromString(text, "text/html");
  showLocalTimes(fresh);
  for (const part of fresh.querySelectorAll("[data-live]")) morph(element(part.id), part);
  follow();
  etag = reply.headers.get("ETag") ?? "";
  return true;
}

function isFinished() {
  return element("live-body").dataset.state === "finished";
}

document.addEventListener("visibilitychange", refresh);
timer = setTimeout(refresh, EVERY_MS);
