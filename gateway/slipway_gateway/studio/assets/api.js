// @ts-check
/** The only module that talks to the gateway. It adds the key, reads errors, and follows events. */

import { texts } from "./texts.js";

const KEY = "slipway.key";
const KEY_PROTOCOL = "openai-insecure-api-key.";
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;

/** Error that the gateway answers, or that there is no answer (status 0, code "unreachable"). */
export class ApiError extends Error {
  /**
   * @param {string} message Sentence for people.
   * @param {{code?: string, param?: string | null, status?: number}} [details] Code, field and HTTP status.
   */
  constructor(message, { code = "unknown", param = null, status = 0 } = {}) {
    super(message);
    this.name = "ApiError";
    this.code = code;
    this.param = param;
    this.status = status;
  }
}

/** @typedef {{signal?: AbortSignal, headers?: Record<string, string>}} Options */

/** @type {(wasWrong: boolean) => Promise<string | null>} */
let askForKey = async () => null;
/** @type {Promise<string | null> | null} */
let asking = null;

/**
 * Set the function that asks the user for a key when the gateway wants one.
 * @param {(wasWrong: boolean) => Promise<string | null>} ask Function that returns the key, or null.
 */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** @returns {string | null} */
function key() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** @param {string} value */
function keepKey(value) {
  sessionStorage.setItem(KEY, value);
}

/**
 * Send a request, and ask for a key and send it again if the gateway wants a key.
 * @param {string} method HTTP method.
 * @param {string} path Path with its query.
 * @param {BodyInit | null} body
 * @param {Options & {headers?: Record<string, string>}} options
 * @returns {Promise<Response>} An answer with a status below 400.
 */
async function send(method, path, body, { signal, headers = {} } = {}) {
  for (;;) {
    const used = key();
    const answer = await fetch(path, {
      method,
      body,
      signal,
      headers: used ? { ...headers, authorization: `Bearer ${used}` } : headers,
      cache: "no-store",
    }).catch((error) => {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new ApiError(texts.common.unreachable, { code: "unreachable" });
    });
    if (answer.ok) return answer;
    if (answer.status !== 401) throw await errorOf(answer);
    // Another request may have asked meanwhile.
    if (key() !== used) continue;
    asking ??= askForKey(used !== null).finally(() => (asking = null));
    const given = await asking;
    if (given === null) throw await errorOf(answer);
    keepKey(given);
  }
}

/** @param {Response} answer @returns {Promise<ApiError>} */
async function errorOf(answer) {
  try {
    const { error } = /** @type {import("./types.js").ApiErrorBody} */ (await answer.json());
    return new ApiError(error.message, { code: error.code, param: error.param, status: answer.status });
  } catch {
    return new ApiError(`HTTP ${answer.status}`, { status: answer.status });
  }
}

/** @param {string} method @param {string} path @param {unknown} body @param {Options} [options] */
async function sendJson(method, path, body, options) {
  const headers = { "content-type": "application/json", ...options?.headers };
  return (await send(method, path, JSON.stringify(body ?? {}), { ...options, headers })).json();
}

/**
 * Split a stream of server-sent events.
 * @param {ReadableStream<Uint8Array>} stream
 * @returns {AsyncGenerator<{name: string, data: string}>}
 */
async function* eventsOf(stream) {
  const reader = stream.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const lines = block.split(/\r?\n/);
        const data = lines
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trimStart());
        const name =
          lines
            .find((line) => line.startsWith("event:"))
            ?.slice(6)
            .trim() ?? "message";
        if (data.length) yield { name, data: data.join("\n") };
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** Wait, or until a signal. @param {number} time_ms @param {AbortSignal} signal */
function pause(time_ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, time_ms, undefined);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve(undefined)), { once: true });
  });
}

export const api = {
  /** Return the JSON of a path. @param {string} path @param {Options} [options] @returns {Promise<any>} */
  get: async (path, options) => (await send("GET", path, null, options)).json(),

  /**
   * Send JSON and return the JSON of the answer.
   * @param {string} path @param {unknown} [body] @param {Options} [options]
   * @returns {Promise<any>}
   */
  post: (path, body, options) => sendJson("POST", path, body, options),

  /**
   * Change something with JSON and return the JSON of the answer.
   * @param {string} path @param {unknown} body @param {Options} [options]
   * @returns {Promise<any>}
   */
  patch: (path, body, options) => sendJson("PATCH", path, body, options),

  /**
   * Send a form, which may have files, and return the JSON of the answer.
   * @param {string} path @param {FormData} form @param {Options} [options]
   * @returns {Promise<any>}
   */
  form: async (path, form, options) => (await send("POST", path, form, options)).json(),

  /** Delete something. @param {string} path @param {Options} [options] @returns {Promise<any>} */
  remove: async (path, options) => (await send("DELETE", path, null, options)).json(),

  /** Download a file. @param {string} path @param {Options} [options] @returns {Promise<Blob>} */
  blob: async (path, options) => (await send("GET", path, null, options)).blob(),

  /**
   * Follow server-sent events until the receiver returns true, or the signal; reconnect if they break off.
   * @param {string} path
   * @param {(name: string, data: any) => boolean | void} onEvent Receiver of an event's name and JSON.
   * @param {AbortSignal} signal
   * @returns {Promise<void>} It rejects with an ApiError if the gateway refuses.
   */
  events: async (path, onEvent, signal) => {
    let pause_ms = FIRST_PAUSE_MS;
    while (!signal.aborted) {
      try {
        const answer = await send("GET", path, null, { signal, headers: { accept: "text/event-stream" } });
        if (!answer.body) return;
        for await (const { name, data } of eventsOf(answer.body)) {
          pause_ms = FIRST_PAUSE_MS;
          if (onEvent(name, JSON.parse(data)) === true || signal.aborted) return;
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.status >= 400 && error.status < 500) throw error;
      }
      await pause(pause_ms, signal);
      pause_ms = Math.min(2 * pause_ms, LONGEST_PAUSE_MS);
    }
  },

  /** Open a WebSocket, whose binary messages are ArrayBuffers. @param {string} path @returns {WebSocket} */
  socket: (path) => {
    const used = key();
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const protocols = used ? ["realtime", KEY_PROTOCOL + used] : ["realtime"];
    const socket = new WebSocket(`${scheme}://${location.host}${path}`, protocols);
    socket.binaryType = "arraybuffer";
    return socket;
  },
};
