// @ts-check
/** Frames of a video file, one at a time, and how far two frames are from each other. */

import { element } from "../../dom.js";
import { wait } from "../../wait.js";

const SEEK_MS = 5000;
const FRAME_MS = 250;

/** @typedef {import("../../types.js").FrameReader} FrameReader */

/**
 * Open a video file.
 * @param {string} url
 * @param {number} fps Frames per second.
 * @returns {Promise<FrameReader>}
 */
export async function frameReader(url, fps) {
  const video = element("video", { src: url, muted: true, preload: "auto", playsInline: true });
  await event(video, "loadeddata");
  return {
    width: video.videoWidth,
    height: video.videoHeight,
    count: Math.max(1, Math.round(video.duration * fps)),
    fps,
    async draw(index, canvas) {
      const at_s = (index + 0.5) / fps;
      if (Math.abs(video.currentTime - at_s) > 1e-4) {
        const done = Promise.all([event(video, "seeked"), shown(video)]);
        video.currentTime = at_s;
        await done;
      }
      if (canvas.width !== video.videoWidth) canvas.width = video.videoWidth;
      if (canvas.height !== video.videoHeight) canvas.height = video.videoHeight;
      const context = /** @type {CanvasRenderingContext2D} */ (
        canvas.getContext("2d", { willReadFrequently: true })
      );
      context.drawImage(video, 0, 0);
      return context.getImageData(0, 0, canvas.width, canvas.height);
    },
  };
}

/**
 * Return the peak signal-to-noise ratio of two pictures of the same size, in dB; infinite if they are equal.
 * @param {ImageData} a
 * @param {ImageData} b
 * @returns {number}
 */
export function psnr_db(a, b) {
  let sum = 0;
  for (let at = 0; at < a.data.length; at += 4) {
    for (let channel = 0; channel < 3; channel++) {
      const difference = a.data[at + channel] - b.data[at + channel];
      sum += difference * difference;
    }
  }
  const mean = sum / ((a.data.length / 4) * 3);
  return mean === 0 ? Infinity : 10 * Math.log10((255 * 255) / mean);
}

/**
 * Draw the difference of two pictures of the same size: black where they are equal.
 * @param {ImageData} a
 * @param {ImageData} b
 * @param {number} gain Factor of the difference.
 * @param {HTMLCanvasElement} canvas
 */
export function drawDifference(a, b, gain, canvas) {
  canvas.width = a.width;
  canvas.height = a.height;
  const difference = new ImageData(a.width, a.height);
  for (let at = 0; at < a.data.length; at += 4) {
    for (let channel = 0; channel < 3; channel++) {
      difference.data[at + channel] = gain * Math.abs(a.data[at + channel] - b.data[at + channel]);
    }
    difference.data[at + 3] = 255;
  }
  canvas.getContext("2d")?.putImageData(difference, 0, 0);
}

/**
 * Wait for a new frame: a browser reports the end of a jump before it has the frame. The same frame is not
 * reported again, so the wait is short.
 * @param {HTMLVideoElement} video
 * @returns {Promise<unknown>}
 */
function shown(video) {
  if (!video.requestVideoFrameCallback) return Promise.resolve();
  const frame = new Promise((resolve) => {
    video.requestVideoFrameCallback(resolve);
  });
  return Promise.race([frame, wait(FRAME_MS)]);
}

/** @param {HTMLVideoElement} video @param {string} name @returns {Promise<void>} */
function event(video, name) {
  return new Promise((resolve, reject) => {
    const stop = new AbortController();
    const timer = setTimeout(
      () => finish(() => reject(new Error(`The browser cannot show this video (${name}).`))),
      SEEK_MS,
    );
    /** @param {() => void} then */
    function finish(then) {
      clearTimeout(timer);
      stop.abort();
      then();
    }
    video.addEventListener(name, () => finish(resolve), { signal: stop.signal });
    video.addEventListener("error", () => finish(() => reject(new Error(video.error?.message ?? name))), {
      signal: stop.signal,
    });
  });
}
