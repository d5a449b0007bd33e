// @ts-check
/** Samples of any rate as 16-bit samples at 16 kHz, piece by piece, by windowed sincs. */

export const RATE_HZ = 16_000;
/** Zero crossings of the sinc on each side; with this many, speech keeps its band up to 7.4 kHz. */
const CROSSINGS = 16;
/** Part of the new band that passes; the rest is where the filter falls. */
const BAND = 0.94;
const PHASES = 256;

export class Resampler {
  /** @param {number} rate_hz Rate of the samples that come in. */
  constructor(rate_hz) {
    this.step = rate_hz / RATE_HZ;
    // When the rate falls, the filter must end below half of the new rate.
    this.cutoff = BAND * Math.min(1, 1 / this.step);
    this.reach = Math.ceil(CROSSINGS / this.cutoff);
    /** @type {(Float32Array | undefined)[]} Weights by phase. */
    this.weights = new Array(PHASES + 1);
    // The first samples have silence before them.
    this.kept = new Float32Array(this.reach);
    /** Place of the next output sample in `kept`. */
    this.place = this.reach;
  }

  /**
   * Resample a piece.
   *
   * @param {Float32Array} samples
   * @returns {Float32Array} Samples that are ready; the last few wait for the next piece.
   */
  push(samples) {
    if (this.step === 1) return samples;
    const joined = new Float32Array(this.kept.length + samples.length);
    joined.set(this.kept);
    joined.set(samples, this.kept.length);
    const count = Math.max(0, Math.ceil((joined.length - this.reach - 1 - this.place) / this.step));
    const found = new Float32Array(count);
    for (let index = 0; index < count; index++) {
      found[index] = this.#at(joined, this.place);
      this.place += this.step;
    }
    const used = Math.max(0, Math.floor(this.place) - this.reach);
    this.kept = joined.slice(used);
    this.place -= used;
    return found;
  }

  /** @param {Float32Array} samples @param {number} place */
  #at(samples, place) {
    const whole = Math.floor(place);
    const weights = this.#weightsOf(Math.round((place - whole) * PHASES));
    let sum = 0;
    for (let index = 0; index < weights.length; index++) {
      sum += weights[index] * samples[whole - this.reach + 1 + index];
    }
    return sum;
  }

  /** @param {number} phase @returns {Float32Array} Weights of the samples around a place, with a sum of 1. */
  #weightsOf(phase) {
    let known = this.weights[phase];
    if (!known) {
      const length = 2 * this.reach;
      known = new Float32Array(length);
      let sum = 0;
      for (let index = 0; index < length; index++) {
        const distance = index - this.reach + 1 - phase / PHASES;
        const x = Math.PI * this.cutoff * distance;
        const sinc = x === 0 ? 1 : Math.sin(x) / x;
        const window = Math.max(0, Math.cos((Math.PI / 2) * (distance / this.reach))) ** 2;
        known[index] = sinc * window;
        sum += known[index];
      }
      for (let index = 0; index < length; index++) known[index] /= sum;
      this.weights[phase] = known;
    }
    return known;
  }
}

/**
 * Return samples as 16-bit samples; what is beyond full scale becomes full scale.
 *
 * @param {Float32Array} samples Samples, -1 to 1.
 * @returns {Int16Array}
 */
export function toInt16(samples) {
  return Int16Array.from(samples, (value) => Math.round(32767 * Math.max(-1, Math.min(1, value))));
}

/** @param {Float32Array} samples @returns {number} Level of samples in decibels, 0 for a full sine wave. */
export function level_db(samples) {
  let sum = 0;
  for (const value of samples) sum += value * value;
  return samples.length && sum ? 10 * Math.log10((2 * sum) / samples.length) : -Infinity;
}
