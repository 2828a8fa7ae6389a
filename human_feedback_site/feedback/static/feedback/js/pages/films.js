// Charts and films of the experiment page: a point of the first chart plays its film beside the first film; the other
// charts show the value under the pointer.

import { all, part } from "../dom.js";

const [before, now] = all("#stage figure");
const newestName = now && part(now, "b").textContent;
/** URL of the chosen film; empty while the newest is shown. */
let chosen = "";

/** @param {Element} film */
function address(film) {
  return film.getAttribute("href") ?? "";
}

/** @param {Element} film */
function caption(film) {
  return film.getAttribute("aria-label") ?? film.textContent ?? "";
}

/** Show a film in one of the two places. @param {HTMLElement} place @param {Element} film */
function show(place, film) {
  const video = part(place, "video", HTMLVideoElement);
  place.querySelector("path")?.setAttribute("d", film.getAttribute("data-curve") ?? "");
  part(place, "span").textContent = caption(film);
  if (video.getAttribute("src") === address(film)) return;
  const plays = !video.paused || address(film) === chosen;
  video.src = address(film);
  if (plays) video.play().catch(() => {});
}

/** Show the chosen or the newest film, and the current curve under the first one. */
export function follow() {
  const films = [...document.querySelectorAll("a.film")];
  // The places come with the first film.
  if (films.length && !now && document.activeElement === document.body) location.reload();
  if (!films.length || !now) return;
  const newest = films[films.length - 1];
  const shown = films.find((film) => address(film) === chosen) ?? newest;
  for (const film of films) film.setAttribute("aria-current", String(film === shown));
  part(now, "b").textContent = shown === newest ? newestName : "";
  const first = films.find((film) => address(film) === part(before, "video").getAttribute("src"));
  if (first) show(before, first);
  show(now, shown);
}

/** @param {Event} event */
function filmAt({ target }) {
  return target instanceof Element ? target.closest("a.film") : null;
}

document.addEventListener("click", (event) => {
  const film = filmAt(event);
  if (!film || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  chosen = address(film);
  follow();
  now.scrollIntoView({ block: "nearest" });
});

for (const type of ["pointerover", "focusin"]) {
  document.addEventListener(type, (event) => {
    const film = filmAt(event);
    const readout = film?.closest("figure")?.querySelector("b");
    if (film && readout) readout.textContent = caption(film);
  });
}

document.addEventListener("pointermove", ({ target, clientX }) => {
  const plot = target instanceof Element && target.closest("svg[data-scale]");
  const readout = plot && plot.closest("figure")?.querySelector("b");
  if (!plot || !readout) return;
  const [right, bottom, top] = (plot.getAttribute("data-scale") ?? "").split(" ").map(Number);
  const { left, width } = plot.getBoundingClientRect();
  const wanted = (clientX - left) / width * 1000;
  const points = (plot.querySelector("path")?.getAttribute("d") ?? "").slice(1).split("L")
    .map((point) => point.split(" ").map(Number));
  const [x, y] = points.reduce((best, each) => Math.abs(each[0] - wanted) < Math.abs(best[0] - wanted) ? each : best);
  const format = new Intl.NumberFormat(document.documentElement.lang, { maximumSignificantDigits: 3 });
  readout.textContent = `${format.format(x / 1000 * right)}: ${format.format(top - y / 1000 * (top - bottom))}`;
  const dot = plot.querySelector("circle");
  dot?.setAttribute("cx", `${x / 10}%`);
  dot?.setAttribute("cy", `${y / 10}%`);
});

follow();
