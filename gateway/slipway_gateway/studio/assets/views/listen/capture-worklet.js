// @ts-check
/** Audio worklet that hands the samples of a microphone to the page, in pieces of about 40 ms. */

/**
 * @typedef {{port: MessagePort}} Processor
 */

const PIECE_SAMPLES = 2048;

const Base = /** @type {new () => Processor} */ (/** @type {any} */ (globalThis).AudioWorkletProcessor);

class Capture extends Base {
  constructor() {
    super();
    this.piece = new Float32Array(PIECE_SAMPLES);
    this.filled = 0;
  }

  /** @param {Float32Array[][]} inputs @returns {boolean} True to go on. */
  process([channels]) {
    const size = channels[0]?.length ?? 0;
    for (let at = 0; at < size; at++) {
      let sum = 0;
      for (const channel of channels) sum += channel[at];
      this.piece[this.filled] = sum / channels.length;
      this.filled += 1;
      if (this.filled === PIECE_SAMPLES) {
        this.port.postMessage(this.piece.slice());
        this.filled = 0;
      }
    }
    return true;
  }
}

/** @type {any} */ (globalThis).registerProcessor("slipway-capture", Capture);
