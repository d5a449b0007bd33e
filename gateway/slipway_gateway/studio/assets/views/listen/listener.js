// @ts-check
/** The connection that takes sound and answers with probabilities and detections of words. */

import { wait } from "../../wait.js";
import { toInt16 } from "./resample.js";

const PATH = "/v1/listen";
const PIECE_SAMPLES = 32_000;
const MOST_BUFFERED_BYTES = 1 << 20;

/** @typedef {{end_s: number, words: string[], probability: number[], threshold: number[]}} Windows */
/** @typedef {{word: string, time_s: number, probability: number}} Detection */
/** @typedef {import("../../types.js").ListenHandlers} Handlers */

export class Listener {
  /** @param {import("../../types.js").Context["api"]} api @param {Handlers} handlers */
  constructor(api, handlers) {
    this.handlers = handlers;
    this.isOver = false;
    this.isReady = false;
    this.socket = api.socket(PATH);
    this.socket.onopen = () => this.#send({ type: "listen.start", format: "pcm16" });
    this.socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    this.socket.onclose = () => this.#fail("");
  }

  /** Send sound as it comes; it is left out until the gateway is ready. @param {Float32Array} samples */
  hear(samples) {
    if (this.isReady && this.socket.readyState === WebSocket.OPEN) this.socket.send(toInt16(samples));
  }

  /** Send a whole recording, no faster than the connection takes it. @param {Float32Array} samples */
  async hearAll(samples) {
    for (let start = 0; start < samples.length && !this.isOver; start += PIECE_SAMPLES) {
      while (this.socket.bufferedAmount > MOST_BUFFERED_BYTES) {
        await wait(20);
      }
      this.hear(samples.subarray(start, start + PIECE_SAMPLES));
    }
    this.stop();
  }

  /** Say that the sound has ended; the last answers come before `onDone`. */
  stop() {
    this.#send({ type: "listen.stop" });
  }

  close() {
    this.isOver = true;
    this.socket.close(1000);
  }

  /** @param {Record<string, unknown>} message */
  #send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  /** @param {any} message */
  #receive(message) {
    if (this.isOver) return;
    switch (message.type) {
      case "listen.ready":
        this.isReady = true;
        this.handlers.onReady();
        break;
      case "listen.windows":
        this.handlers.onWindows(message);
        break;
      case "listen.detection":
        this.handlers.onDetection(message);
        break;
      case "queue_status":
        this.handlers.onQueue(message.position, message.queue_depth);
        break;
      case "listen.done":
        this.handlers.onDone(message.seconds);
        this.close();
        break;
      case "error":
        this.#fail(message.message);
        break;
    }
  }

  /** @param {string} text */
  #fail(text) {
    if (this.isOver) return;
    this.isOver = true;
    this.handlers.onError(text);
  }
}
