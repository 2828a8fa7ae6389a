// The list of comparisons: clips are fetched when they come into sight, and the two of a pair play together.

import { copied } from "../dom.js";
import "../media.js";

const inSight = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting || !(target instanceof HTMLVideoElement)) continue;
    inSight.unobserve(target);
    target.preload = "auto";
    if (target.paused && !target.error) target.load(); // one that was started at once is on its way
  }
}, { rootMargin: "100px" });

for (const clips of document.querySelectorAll(".clips")) {
  const videos = [...clips.querySelectorAll("video")];
  if (!videos.length) continue; // the clips have expired
  for (const video of videos) {
    video.controls = false;
    inSight.observe(video);
  }
  const button = copied("play");
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
    // A clip that cannot be played stays still; the other one plays.
    video.play().catch(() => {});
  }
}
