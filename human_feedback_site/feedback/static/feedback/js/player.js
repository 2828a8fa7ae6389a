// Two clips that start together and start again together.

const UNPLAYABLE = "unplayable";
// A phone that saves power may decode nothing before it plays, and never say "canplaythrough".
const DECODE_MS = 5_000;

/** Two videos made of fetched clips, decoded as far as their first frame where the browser does so. */
export class Pair {
  /** @param {{uuid: string, comparison: string}} lease */
  constructor(lease, left, right) {
    this.lease = lease;
    this.left = left;
    this.right = right;
  }

  get videos() {
    return [this.left, this.right];
  }

  get playable() {
    return this.videos.every((video) => video !== UNPLAYABLE);
  }

  /** Build a pair from two Blobs; null stands for a clip that could not be fetched. Never rejects. */
  static async from(lease, blobs) {
    const [left, right] = await Promise.all(blobs.map((blob) => (blob ? decoded(blob) : UNPLAYABLE)));
    return new Pair(lease, left, right);
  }

  discard() {
    for (const video of this.videos) {
      if (video === UNPLAYABLE) continue;
      video.pause();
      URL.revokeObjectURL(video.src);
      video.removeAttribute("src");
      video.load();
    }
  }
}

function decoded(blob) {
  const video = document.createElement("video");
  Object.assign(video, { muted: true, playsInline: true, preload: "auto", disablePictureInPicture: true });
  video.src = URL.createObjectURL(blob);
  return new Promise((resolve) => {
    video.addEventListener("canplaythrough", () => resolve(video), { once: true });
    video.addEventListener("error", () => resolve(UNPLAYABLE), { once: true });
    setTimeout(() => resolve(video.readyState >= HTMLMediaElement.HAVE_METADATA ? video : UNPLAYABLE), DECODE_MS);
  });
}

export class Player {
  #pair = null;
  #frames;

  /** @param {{left: HTMLElement, right: HTMLElement}} frames where the clips go */
  constructor(frames) {
    this.#frames = frames;
    /** True where the browser wants a touch before it plays anything (a phone that saves power). */
    this.blocked = false;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.restart();
    });
  }

  get pair() {
    return this.#pair;
  }

  /** Put a pair on screen and start it. Returns the pair that was there. */
  show(pair) {
    const before = this.#pair;
    before?.videos.forEach((video) => video !== UNPLAYABLE && video.pause());
    this.#pair = pair;
    for (const side of ["left", "right"]) this.#place(this.#frames[side], pair?.[side]);
    this.restart();
    return before;
  }

  restart() {
    const videos = this.#pair?.videos.filter((video) => video !== UNPLAYABLE) ?? [];
    for (const video of videos) video.currentTime = 0;
    for (const video of videos) video.play().then(() => this.#setBlocked(false), (error) => this.#failed(error));
  }

  #place(frame, video) {
    frame.classList.toggle(UNPLAYABLE, video === UNPLAYABLE);
    if (!video || video === UNPLAYABLE) {
      frame.replaceChildren();
      return;
    }
    frame.style.setProperty("--ratio", video.videoWidth / video.videoHeight);
    video.onended = () => this.#pair?.videos.every((each) => each === UNPLAYABLE || each.ended || each.error) && this.restart();
    frame.replaceChildren(video);
  }

  #failed(error) {
    if (error.name === "NotAllowedError") this.#setBlocked(true);
  }

  #setBlocked(blocked) {
    this.blocked = blocked;
    for (const frame of Object.values(this.#frames)) frame.classList.toggle("blocked", blocked);
  }
}
