// @ts-check
/** Where sound comes from: the microphone, as it is heard, or a file, as fast as the connection takes it. */

import { RATE_HZ, Resampler } from "./resample.js";

const WORKLET = "/studio/views/listen/capture-worklet.js";

/** @typedef {{close: () => void}} Source */

/**
 * Hear the microphone.
 *
 * @param {(samples: Float32Array) => void} onSamples Receiver of samples at 16 kHz.
 * @returns {Promise<Source>} It rejects if the browser has no microphone or the user forbids it.
 */
export async function microphone(onSamples) {
  // Browsers clean speech for calls; a wake word is trained on sound as it is.
  const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true };
  const stream = await navigator.mediaDevices.getUserMedia({ audio });
  const context = new AudioContext();
  const close = () => {
    stream.getTracks().forEach((track) => track.stop());
    context.close();
  };
  try {
    await context.audioWorklet.addModule(WORKLET);
  } catch (error) {
    close();
    throw error;
  }
  const resampler = new Resampler(context.sampleRate);
  const capture = new AudioWorkletNode(context, "slipway-capture", { numberOfOutputs: 0 });
  capture.port.onmessage = ({ data }) => onSamples(resampler.push(data));
  context.createMediaStreamSource(stream).connect(capture);
  await context.resume();
  return { close };
}

/**
 * Read a sound file.
 *
 * @param {Blob} file File of any kind that the browser can decode.
 * @returns {Promise<Float32Array>} Samples at 16 kHz, all channels together.
 */
export async function readSound(file) {
  const context = new OfflineAudioContext(1, 1, RATE_HZ);
  const sound = await context.decodeAudioData(await file.arrayBuffer());
  const samples = new Float32Array(sound.length);
  for (let channel = 0; channel < sound.numberOfChannels; channel++) {
    const values = sound.getChannelData(channel);
    for (let at = 0; at < samples.length; at++) samples[at] += values[at] / sound.numberOfChannels;
  }
  return samples;
}
