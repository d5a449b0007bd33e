// @ts-check
/** Types of the answer of `GET /v1/fleet`. This module has no code. */

/**
 * @typedef {object} Gpu
 * @property {string} id
 * @property {number | null} share Share of the time in which it worked, 0 to 1.
 * @property {number | null} memory_used_bytes
 * @property {number | null} memory_bytes
 * @property {number | null} power_w
 */

/**
 * @typedef {object} Server
 * @property {string} url
 * @property {State} state
 * @property {string} reason Sentence that says why it is not ready.
 * @property {number} models Number of models that are ready.
 * @property {number | null} processor_share Share of all processors that work, 0 to 1.
 * @property {number | null} memory_used_bytes
 * @property {number | null} memory_bytes
 * @property {Gpu[]} gpus
 */

/**
 * @typedef {object} Parity Worst differences from the checkpoint's network.
 * @property {number} points
 * @property {number} left_out
 * @property {number} max_abs
 * @property {number} relative_l2
 * @property {number} cosine
 * @property {number} of_bound
 */

/**
 * @typedef {object} FleetModel
 * @property {string} id
 * @property {State} state
 * @property {number} ready Number of servers that are ready with it.
 * @property {number} servers Number of servers that have it.
 * @property {string | null} engine
 * @property {string | null} precision
 * @property {Parity | null} parity
 * @property {number | null} requests_running
 * @property {{waiting: number, running: number, paused: number, oldest_s: number | null} | null} queue
 * @property {{open: number, limit: number | null, waiting: number} | null} sessions
 * @property {number} failures
 */

/**
 * @typedef {object} Failure
 * @property {string} video_id
 * @property {string} model
 * @property {number} at Unix time, in seconds.
 * @property {string} code
 * @property {string} message
 */

/** @typedef {"ready" | "draining" | "unreachable"} State */

/**
 * @typedef {object} Fleet
 * @property {Server[]} servers
 * @property {FleetModel[]} models
 * @property {Failure[]} failures The newest first.
 */

export {};
