// Reloads videos that fail, on every page that includes this script. Their URLs are permanent but redirect to signed
// links that expire, and the media store may be unreachable for a while.

const FIRST_WAIT_MS = 5_000;
const LONGEST_WAIT_MS = 60_000;
const HOLD_SECONDS = 0.2; // for which clips hold their last picture

/**
 * When each video was last reloaded (or will be), and the wait in ms before the next reload.
 * @type {WeakMap<HTMLMediaElement, { at: number, wait: number }>}
 */
const attempts = new WeakMap();
/**
 * Videos that were started and not paused by the user; after an error the browser pauses them by itself.
 * @type {WeakSet<HTMLMediaElement>}
 */
const started = new WeakSet();

/** @param {HTMLMediaElement} video */
function renew(video) {
  if (video.currentSrc.startsWith("blob:")) return; // local data, so reloading can't help
  const { at, wait } = attempts.get(video) ?? { at: -Infinity, wait: FIRST_WAIT_MS };
  const now = performance.now();
  const next = Math.max(now, at + wait);
  attempts.set(video, { at: next, wait: Math.min(2 * wait, LONGEST_WAIT_MS) });
  setTimeout(() => reload(video), next - now);
}

/** @param {HTMLMediaElement} video */
function reload(video) {
  if (!video.isConnected || !video.error) return; // removed from the page, or already reloaded
  video.load();
  if (started.has(video)) video.play().catch(() => {}); // an error triggers the next reload
}

/** Move the marker in the curve of predicted rewards under a video along with it. @param {HTMLMediaElement} video */
function mark(video) {
  const marker = video.closest("figure")?.querySelector(".reward line");
  if (!marker || !video.isConnected) return;
  const x = String(Math.min(100, 100 * video.currentTime / Math.max(0.01, video.duration - HOLD_SECONDS)) || 0);
  marker.setAttribute("x1", x);
  marker.setAttribute("x2", x);
  if (!video.paused) requestAnimationFrame(() => mark(video));
}

/** Say in place of a video that it can't be played, while that is so. @param {HTMLMediaElement} video */
function note(video) {
  video.closest("[data-unplayable]")?.classList.toggle("unplayable", video.error !== null);
}

/** @param {string} type @param {(video: HTMLMediaElement) => void} act */
function listen(type, act) {
  document.addEventListener(type, ({ target }) => target instanceof HTMLMediaElement && act(target), { capture: true });
}

listen("error", renew);
listen("error", note);
listen("loadeddata", note);
listen("play", mark);
listen("seeked", mark);
listen("play", (video) => started.add(video));
listen("pause", (video) => video.error || started.delete(video));
for (const video of document.querySelectorAll("video")) { // videos that loaded before this script
  if (!video.paused) started.add(video);
  if (video.error) {
    renew(video);
    note(video);
  }
}
