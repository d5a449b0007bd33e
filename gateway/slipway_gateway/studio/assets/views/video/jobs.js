// @ts-check
/**
 * The user's jobs as the page knows them. The chosen job is followed by its events; the others are read again
 * every other second while one of them waits or runs, since a browser holds few connections to one server.
 */

import { ApiError } from "../../api.js";

/** @typedef {import("../../types.js").Video} Video */

/** @typedef {import("../../types.js").Jobs} Jobs */

const PAGE = 40;
const LOOK_MS = 2000;
const IDLE_LOOK_MS = 15_000;
const ACTIVE = ["queued", "in_progress"];

/** @param {Video} video @returns {boolean} True if the job will change by itself. */
export function isActive(video) {
  return ACTIVE.includes(video.status);
}

/**
 * Read the jobs, and keep them current.
 * @param {typeof import("../../api.js").api} api
 * @param {(changed: Video | null) => void} onChange Function that is called after each change,
 *   with a job if only that one changed.
 * @param {(error: unknown) => void} onError Function that receives an error, and null when it is over.
 * @returns {Jobs}
 */
export function jobs(api, onChange, onError) {
  /** @type {Map<string, Video>} */
  const known = new Map();
  /** Number of the question before which each job of an answer came. @type {Map<string, number>} */
  const added = new Map();
  const ended = new AbortController();
  /** @type {{id: string, stop: AbortController} | null} */
  let followed = null;
  let hasMore = false;
  let hasFailed = false;
  let oldest = "";
  let timer = 0;
  let clock = 0;

  /** @param {Video} video @returns {boolean} True if the job is new or has changed. */
  function take(video) {
    const before = known.get(video.id);
    const isOpen = video.status === "in_progress" || video.status === "paused";
    const preview = video.preview ?? (isOpen ? before?.preview : undefined);
    const next = preview ? { ...video, preview } : video;
    known.set(video.id, next);
    return JSON.stringify(before) !== JSON.stringify(next);
  }

  async function refresh() {
    clearTimeout(timer);
    const asked = (clock += 1);
    try {
      const page = await api.get(`/v1/videos?limit=${PAGE}`, { signal: ended.signal });
      const listed = new Set(page.data.map((/** @type {Video} */ video) => video.id));
      const last = page.has_more ? (page.data.at(-1)?.created_at ?? 0) : -1;
      // What the page should have and has not was deleted elsewhere, unless it came after the question.
      const gone = [...known.values()].filter(
        (video) => video.created_at > last && !listed.has(video.id) && (added.get(video.id) ?? 0) < asked,
      );
      gone.forEach((video) => known.delete(video.id));
      const changed = page.data.filter(
        (/** @type {Video} */ video) => video.id !== followed?.id && take(video),
      );
      if (!oldest) {
        oldest = page.last_id ?? "";
        hasMore = page.has_more;
      }
      if (hasFailed) onError(null);
      hasFailed = false;
      if (changed.length || gone.length || !page.data.length) onChange(null);
    } catch (error) {
      hasFailed = !ended.signal.aborted;
      if (hasFailed) onError(error);
    }
    plan();
  }

  function plan() {
    clearTimeout(timer);
    if (ended.signal.aborted) return;
    const busy = [...known.values()].some(isActive);
    timer = setTimeout(() => (document.hidden ? plan() : refresh()), busy ? LOOK_MS : IDLE_LOOK_MS);
  }

  /** @param {string | null} id */
  function follow(id) {
    if (followed?.id === id) return;
    followed?.stop.abort();
    followed = null;
    const video = id === null ? undefined : known.get(id);
    if (id === null || (video && !isActive(video) && video.status !== "paused")) return;
    const stop = new AbortController();
    followed = { id, stop };
    api
      .events(`/v1/videos/${id}/events`, (name, data) => receive(id, name, data), stop.signal)
      .catch((error) => {
        if (error instanceof ApiError && error.status === 404) forget(id);
        else onError(error);
      })
      .finally(() => {
        if (followed?.id === id) followed = null;
      });
  }

  /** @param {string} id @param {string} name @param {any} data @returns {boolean} True for the last event. */
  function receive(id, name, data) {
    if (name === "video.deleted") {
      forget(id);
      return true;
    }
    if (take(data)) onChange(known.get(id) ?? null);
    return ["video.completed", "video.failed", "video.cancelled"].includes(name);
  }

  /** @param {string} id */
  function forget(id) {
    if (known.delete(id)) onChange(null);
  }

  refresh();
  return {
    all: () => [...known.values()].sort((a, b) => b.created_at - a.created_at || (a.id < b.id ? 1 : -1)),
    get: (id) => known.get(id),
    put(video) {
      added.set(video.id, (clock += 1));
      take(video);
      onChange(null);
      plan();
    },
    drop: forget,
    async more() {
      const after = oldest;
      const page = await api.get(`/v1/videos?limit=${PAGE}&after=${after}`);
      // A second click may have asked for the same page.
      if (oldest !== after) return;
      page.data.forEach(take);
      oldest = page.last_id ?? oldest;
      hasMore = page.has_more;
      onChange(null);
    },
    hasMore: () => hasMore,
    follow,
    refresh,
    close() {
      clearTimeout(timer);
      followed?.stop.abort();
      ended.abort();
    },
  };
}
