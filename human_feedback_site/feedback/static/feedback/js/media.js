// Videos that cannot be read are asked for anew, wherever they are on a page. Their addresses last, but lead to links
// that expire; and the store may be away for a while.

const FIRST_WAIT_MS = 5_000;
const LONGEST_WAIT_MS = 60_000;

/**
 * When a video was last asked for anew, and how long the next time has to wait after that.
 * @type {WeakMap<HTMLMediaElement, { at: number, wait: number }>}
 */
const attempts = new WeakMap();
/**
 * Those that somebody has started and nobody has stopped; one that breaks off is paused by the browser.
 * @type {WeakSet<HTMLMediaElement>}
 */
const started = new WeakSet();

/** @param {HTMLMediaElement} video */
function renew(video) {
  if (video.currentSrc.startsWith("blob:")) return; // nothing could be read anew
  const { at, wait } = attempts.get(video) ?? { at: -Infinity, wait: FIRST_WAIT_MS };
  const now = performance.now();
  const next = Math.max(now, at + wait);
  attempts.set(video, { at: next, wait: Math.min(2 * wait, LONGEST_WAIT_MS) });
  setTimeout(() => reload(video), next - now);
}

/** @param {HTMLMediaElement} video */
function reload(video) {
  if (!video.isConnected || !video.error) return; // gone, or asked for meanwhile
  video.load();
  if (started.has(video)) video.play().catch(() => {}); // it fails once more
}

/** @param {string} type @param {(video: HTMLMediaElement) => void} act */
function listen(type, act) {
  document.addEventListener(type, ({ target }) => target instanceof HTMLMediaElement && act(target), { capture: true });
}

listen("error", renew);
listen("play", (video) => started.add(video));
listen("pause", (video) => video.error || started.delete(video));
for (const video of document.querySelectorAll("video")) { // what was there before this script
  if (!video.paused) started.add(video);
  if (video.error) renew(video);
}
