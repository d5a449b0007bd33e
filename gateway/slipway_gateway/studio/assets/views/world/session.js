// @ts-check
/**
 * The connection to one world: it begins with a picture or a saved file, receives frames, and sends what is
 * held. A connection that is lost comes back to the same world by its token.
 */

import { wait } from "../../wait.js";

const PATH = "/v1/realtime/video";
const PIECE_BYTES = 4 << 20;
const MOST_BUFFERED_BYTES = 8 << 20;
/** The gateway keeps a world for 30 s after its connection was lost. */
const RESUME_MS = 28_000;
const AGAIN_MS = 1_000;
const LATEST_START_MS = 3_000;
/** Codes with which the gateway ends a world for good. */
const FINAL_CODES = new Set([1000, 1003, 1007, 1008, 1009, 1011, 1012, 1013]);

/** @typedef {import("../../types.js").ChunkFacts} ChunkFacts */
/** @typedef {{model: string, fps: number, mime: string, pacing: string, continues: boolean}} Config */
/** @typedef {import("../../types.js").WorldHandlers} Handlers */

export class WorldSession {
  /**
   * @param {import("../../types.js").Context["api"]} api
   * @param {Record<string, unknown>} opening Fields of `session.start`.
   * @param {Blob | null} state Saved world to go on from; null to begin a new one.
   * @param {Handlers} handlers
   */
  constructor(api, opening, state, handlers) {
    this.api = api;
    this.opening = opening;
    this.state = state;
    this.handlers = handlers;
    /** @type {string | null} */
    this.token = null;
    this.received = 0;
    this.lastId = 0;
    /** @type {any} Message whose binary message comes next. */
    this.expected = null;
    /** @type {ArrayBuffer[]} */
    this.saved = [];
    this.isOver = false;
    this.lostAt_ms = 0;
    this.timer = 0;
    /** @type {{id: number, timer: number} | null} Press that no block has begun with yet. */
    this.awaited = null;
    /** @type {Record<string, unknown> | null} Release that waits for it. */
    this.postponed = null;
    /** @type {Map<number, number>} Time of each press whose block was not seen yet, in milliseconds. */
    this.pressed_ms = new Map();
    this.socket = this.#connect(PATH, () => this.#start());
  }

  /**
   * Send what is held. A release waits until a block has begun with the press before it, so that a short tap
   * counts.
   *
   * @param {Record<string, unknown>} event Event of the interaction.
   * @param {boolean} isRelease True if less is held than before.
   */
  steer(event, isRelease) {
    if (isRelease && this.awaited) {
      this.postponed = event;
      return;
    }
    this.postponed = null;
    this.#settle();
    this.lastId += 1;
    const id = this.lastId;
    this.#send("session.interaction", { interaction: { event_id: id, event } });
    if (isRelease) return;
    this.pressed_ms.set(id, performance.now());
    this.awaited = { id, timer: window.setTimeout(() => this.#started([id]), LATEST_START_MS) };
  }

  /**
   * Return how long ago the press was that a shown frame is the first answer to.
   *
   * @param {(string | number)[]} ids Interactions that began with the frame's block.
   * @returns {number | null} Time in milliseconds; null if the frame answers to none.
   */
  reaction(ids) {
    const times = ids.flatMap((id) => this.pressed_ms.get(Number(id)) ?? []);
    const latest = Math.max(-1, ...ids.map(Number));
    for (const id of this.pressed_ms.keys()) if (id <= latest) this.pressed_ms.delete(id);
    return times.length ? performance.now() - times[0] : null;
  }

  /** @param {number} chunks Tell the gateway how many chunks were shown; it runs at most two blocks ahead. */
  acknowledge(chunks) {
    this.#send("session.ack", { received_chunks: chunks });
  }

  /** Ask for the world's state; it comes by `onSaved`. */
  save() {
    this.saved = [];
    this.#send("session.snapshot", {});
  }

  /** End the world. */
  stop() {
    if (this.socket.readyState === WebSocket.OPEN) this.#send("session.stop", {});
    else this.close();
  }

  /** End the connection at once, and with it the world. */
  close() {
    this.#send("session.stop", {});
    this.#finish();
    this.socket.close(1000);
  }

  #finish() {
    this.isOver = true;
    clearTimeout(this.timer);
    this.#settle();
  }

  /** @param {string} path @param {() => void} onOpen */
  #connect(path, onOpen) {
    const socket = this.api.socket(path);
    socket.onopen = onOpen;
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = (event) => this.#closed(event, socket);
    return socket;
  }

  async #start() {
    const { state, socket } = this;
    if (!state) {
      this.#send("session.start", this.opening);
      return;
    }
    const { model, format } = this.opening;
    this.#send("session.start", { model, format, state: { byte_length: state.size } });
    for (let start = 0; start < state.size; start += PIECE_BYTES) {
      while (socket.bufferedAmount > MOST_BUFFERED_BYTES) {
        await wait(50);
      }
      const piece = await state.slice(start, start + PIECE_BYTES).arrayBuffer();
      if (socket.readyState !== WebSocket.OPEN) return;
      socket.send(piece);
    }
  }

  /** @param {string} type @param {Record<string, unknown>} values */
  #send(type, values) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type, ...values }));
  }

  /** @param {string | ArrayBuffer} data */
  #receive(data) {
    if (typeof data !== "string") {
      this.#receiveBinary(data);
      return;
    }
    const message = JSON.parse(data);
    switch (message.type) {
      case "video.start":
        this.token = message.resume_token;
        this.handlers.onStart(message.config);
        break;
      case "queue_status":
        this.handlers.onQueue(message.position, message.queue_depth);
        break;
      case "video.chunk_metadata":
        this.#started(message.started_event_ids);
        this.expected = message;
        break;
      case "session.state":
        this.expected = message;
        break;
      case "session.state.done":
        this.handlers.onSaved(new Blob(this.saved, { type: "application/octet-stream" }));
        this.saved = [];
        break;
      case "session.moving":
      case "session.moved":
        this.handlers.onMove(message.type === "session.moving" ? "moving" : "moved");
        break;
      case "session.resumed":
        this.lostAt_ms = 0;
        this.handlers.onLost(false);
        break;
      case "session.done":
        this.#finish();
        this.handlers.onEnd(message.stopped);
        break;
      case "error":
        this.#started([message.event_id]);
        this.handlers.onError(message.message, false);
        break;
    }
  }

  /** @param {ArrayBuffer} data */
  #receiveBinary(data) {
    const facts = this.expected;
    this.expected = null;
    if (facts?.type === "session.state") this.saved.push(data);
    if (facts?.type !== "video.chunk_metadata" || facts.kind !== "media") return;
    this.received += 1;
    this.handlers.onFrame(data, facts);
  }

  /** @param {unknown[]} ids Ids of the interactions that a block has begun with, or that were refused. */
  #started(ids) {
    if (!this.awaited || !ids.includes(this.awaited.id)) return;
    this.#settle();
    if (this.postponed) this.steer(this.postponed, true);
  }

  #settle() {
    clearTimeout(this.awaited?.timer);
    this.awaited = null;
  }

  /** @param {CloseEvent} event @param {WebSocket} socket */
  #closed(event, socket) {
    if (this.isOver || socket !== this.socket) return;
    const now_ms = performance.now();
    this.lostAt_ms ||= now_ms;
    if (!this.token || FINAL_CODES.has(event.code) || now_ms - this.lostAt_ms > RESUME_MS) {
      this.#finish();
      this.handlers.onError("", true);
      return;
    }
    this.handlers.onLost(true);
    this.timer = window.setTimeout(() => {
      const query = new URLSearchParams({ resume: this.token ?? "", received_chunks: String(this.received) });
      this.socket = this.#connect(`${PATH}?${query}`, () => undefined);
    }, AGAIN_MS);
  }
}
