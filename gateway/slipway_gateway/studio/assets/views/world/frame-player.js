// @ts-check
/** Frames of a world at their own rate: they arrive block by block, and are drawn one by one. */

/** @typedef {import("./session.js").ChunkFacts} ChunkFacts */

/** Number of frames that may wait; the gateway sends at most three blocks ahead. */
const MOST_WAITING = 120;
/** From this many waiting frames on, frames are drawn faster than their rate. */
const HURRY_FROM = 30;

export class FramePlayer {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {(facts: ChunkFacts) => void} onDrawn Receiver of the facts of each frame when it is drawn.
   */
  constructor(canvas, onDrawn) {
    this.canvas = canvas;
    this.onDrawn = onDrawn;
    this.fps = 25;
    /** @type {{bitmap: ImageBitmap, facts: ChunkFacts}[]} */
    this.waiting = [];
    this.decoded = Promise.resolve();
    this.next_ms = 0;
    this.isClosed = false;
    this.request = requestAnimationFrame((now_ms) => this.#draw(now_ms));
  }

  /**
   * Add a frame.
   *
   * @param {ArrayBuffer} data JPEG file.
   * @param {ChunkFacts} facts
   */
  add(data, facts) {
    const decoding = createImageBitmap(new Blob([data], { type: "image/jpeg" })).catch(() => null);
    this.decoded = this.decoded.then(async () => {
      const bitmap = await decoding;
      if (!bitmap) return;
      if (this.isClosed) {
        bitmap.close();
        return;
      }
      this.waiting.push({ bitmap, facts });
      while (this.waiting.length > MOST_WAITING) this.waiting.shift()?.bitmap.close();
    });
  }

  /** Show a picture until the first frame comes. @param {CanvasImageSource & {width: number, height: number}} picture */
  show(picture) {
    this.canvas.width = picture.width;
    this.canvas.height = picture.height;
    this.canvas.getContext("2d")?.drawImage(picture, 0, 0);
  }

  /** Forget the frames that wait. */
  clear() {
    this.waiting.splice(0).forEach(({ bitmap }) => bitmap.close());
  }

  close() {
    this.isClosed = true;
    cancelAnimationFrame(this.request);
    this.clear();
  }

  /** @param {number} now_ms */
  #draw(now_ms) {
    this.request = requestAnimationFrame((later_ms) => this.#draw(later_ms));
    if (now_ms < this.next_ms || !this.waiting.length) return;
    const hurry = this.waiting.length > HURRY_FROM ? 1.5 : 1;
    const period_ms = 1000 / this.fps / hurry;
    // After a pause the next frame comes at once, and the rate begins anew.
    this.next_ms = Math.max(this.next_ms + period_ms, now_ms - period_ms);
    const { bitmap, facts } = /** @type {{bitmap: ImageBitmap, facts: ChunkFacts}} */ (this.waiting.shift());
    if (this.canvas.width !== bitmap.width || this.canvas.height !== bitmap.height) {
      this.canvas.width = bitmap.width;
      this.canvas.height = bitmap.height;
    }
    this.canvas.getContext("2d")?.drawImage(bitmap, 0, 0);
    bitmap.close();
    this.onDrawn(facts);
  }
}
