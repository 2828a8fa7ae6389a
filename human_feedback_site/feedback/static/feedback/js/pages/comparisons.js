// List of comparisons: fetches clips when they scroll into view, and plays the clips of a comparison together.

import { copied } from "../dom.js";
import "../media.js";
import "./times.js";

const moves = !matchMedia("(prefers-reduced-motion: reduce)").matches;
const inSight = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting || !(target instanceof HTMLVideoElement)) continue;
    inSight.unobserve(target);
    target.preload = "auto";
    if (target.paused && !target.error) target.load(); // a video that was started is already loading
    if (moves && target.closest(".before-after")) target.play().catch(() => {});
  }
}, { rootMargin: "100px" });

for (const clips of document.querySelectorAll(".clips")) {
  const videos = [...clips.querySelectorAll("video")];
  if (!videos.length) continue; // the clips are no longer available
  for (const video of videos) {
    video.controls = false;
    video.addEventListener("loadedmetadata", () => {
      if (video.paused && !video.played.length) video.currentTime = video.duration / 2; // a better picture than the first
    });
    inSight.observe(video);
  }
  const button = copied("play");
  if (videos.length !== 2) button.setAttribute("aria-label", button.dataset.other ?? "");
  button.addEventListener("click", () => (videos[0].paused ? play(videos) : videos.forEach((video) => video.pause())));
  videos[0].addEventListener("play", () => clips.classList.add("playing"));
  videos[0].addEventListener("pause", () => clips.classList.remove("playing"));
  clips.append(button);
}

/** @param {HTMLVideoElement[]} videos */
function play(videos) {
  for (const video of videos) {
    if (video.error) video.load();
    else video.currentTime = 0;
    // If one clip can't be played, the others still play.
    video.play().catch(() => {});
  }
}
