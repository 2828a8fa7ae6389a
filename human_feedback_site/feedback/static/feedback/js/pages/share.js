// Records the two films side by side with their captions, and saves the recording as a video file.

import { element, part } from "../dom.js";

const MOST_SECONDS = 12;
const SIDE = 360;
const BAR = 56;
const TYPES = ["video/mp4;codecs=avc1.42E01E", "video/mp4", "video/webm"];

const button = element("share", HTMLButtonElement);
const name = button.textContent;
const type = "MediaRecorder" in window ? TYPES.find((each) => MediaRecorder.isTypeSupported(each)) : undefined;

/**
 * Return a figure's film in a new video, loaded into memory: a canvas with pictures from another host can't be recorded.
 * @param {HTMLElement} figure
 */
async function loaded(figure) {
  const video = document.createElement("video");
  const reply = await fetch(part(figure, "video", HTMLVideoElement).src);
  if (!reply.ok) throw new Error(`status ${reply.status}`);
  video.muted = video.loop = true;
  video.src = URL.createObjectURL(await reply.blob());
  await new Promise((resolve, reject) => {
    video.onloadeddata = resolve;
    video.onerror = () => reject(video.error);
  });
  return video;
}

/** @param {CanvasRenderingContext2D} context @param {HTMLVideoElement[]} videos @param {string[][]} captions */
function draw(context, videos, captions) {
  context.fillStyle = "#0f1218";
  context.fillRect(0, 0, 2 * SIDE, SIDE + BAR);
  context.fillStyle = "#ffffff";
  videos.forEach((video, place) => {
    const scale = SIDE / Math.max(video.videoWidth, video.videoHeight);
    const [width, height] = [video.videoWidth * scale, video.videoHeight * scale];
    context.drawImage(video, place * SIDE + (SIDE - width) / 2, (SIDE - height) / 2, width, height);
    captions[place].forEach((line, index) => {
      context.font = `${index ? 400 : 600} ${16 - index}px system-ui, sans-serif`;
      context.fillText(line, (place + 0.5) * SIDE, SIDE + BAR * (0.32 + 0.4 * index), SIDE - 16);
    });
  });
}

async function record() {
  const figures = [...element("stage").querySelectorAll("figure")];
  const videos = await Promise.all(figures.map(loaded));
  const captions = figures.map((figure) => ["b", "span"].map((each) => part(figure, each).textContent));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * SIDE, SIDE + BAR];
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  Object.assign(context, { textAlign: "center", textBaseline: "middle" });
  const recorder = new MediaRecorder(canvas.captureStream(30), { mimeType: type });
  const parts = /** @type {Blob[]} */ ([]);
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const ended = new Promise((resolve) => {
    recorder.onstop = resolve;
  });
  await Promise.all(videos.map((video) => video.play()));
  recorder.start();
  const drawing = setInterval(() => draw(context, videos, captions), 1000 / 30);
  setTimeout(() => recorder.stop(), 1000 * Math.min(MOST_SECONDS, ...videos.map(({ duration }) => 3 * duration)));
  await ended;
  clearInterval(drawing);
  for (const video of videos) video.pause();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts, { type }));
  link.download = `${document.title.split(" ")[0]}.${type?.includes("mp4") ? "mp4" : "webm"}`;
  link.click();
}

button.hidden = !type;
button.addEventListener("click", async () => {
  [button.disabled, button.textContent] = [true, button.dataset.busy ?? ""];
  try {
    await record();
    button.textContent = name;
  } catch {
    button.textContent = button.dataset.failed ?? "";
  }
  button.disabled = false;
});
