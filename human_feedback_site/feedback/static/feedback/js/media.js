// Reloads videos that fail, on every page that includes this script. Their URLs are permanent but redirect to signed
// links that expire, and the media store may be unreachable for a while.

const FIRST_WAIT_MS = 5_000;
const LONGEST_WAIT_MS = 60_000;

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

/** @param {string} type @param {(video: HTMLMediaElement) => void} act */
function listen(type, act) {
  document.addEventListener(type, ({ target }) => target instanceof HTMLMediaElement && act(target), { capture: true });
}

listen("error", renew);
listen("play", (video) => started.add(video));
listen("pause", (video) => video.error || started.delete(video));
for (const video of document.querySelectorAll("video")) { // videos that loaded before this script
  if (!video.paused) started.add(video);
  if (video.error) renew(video);
}
