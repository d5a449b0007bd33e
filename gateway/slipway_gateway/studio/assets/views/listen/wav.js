// @ts-check
/** Samples as a WAV file of 16 bits at 16 kHz. */

import { RATE_HZ, toInt16 } from "./resample.js";

const HEADER_BYTES = 44;

/** @param {Float32Array} samples @returns {Blob} */
export function wavFile(samples) {
  const data = toInt16(samples);
  const header = new DataView(new ArrayBuffer(HEADER_BYTES));
  const text = (/** @type {number} */ at, /** @type {string} */ word) =>
    [...word].forEach((letter, index) => header.setUint8(at + index, letter.charCodeAt(0)));
  text(0, "RIFF");
  header.setUint32(4, HEADER_BYTES - 8 + data.byteLength, true);
  text(8, "WAVEfmt ");
  header.setUint32(16, 16, true);
  header.setUint16(20, 1, true);
  header.setUint16(22, 1, true);
  header.setUint32(24, RATE_HZ, true);
  header.setUint32(28, 2 * RATE_HZ, true);
  header.setUint16(32, 2, true);
  header.setUint16(34, 16, true);
  text(36, "data");
  header.setUint32(40, data.byteLength, true);
  return new Blob([header, /** @type {Int16Array<ArrayBuffer>} */ (data)], { type: "audio/wav" });
}
