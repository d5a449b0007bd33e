// @ts-check
/** All jobs as cards with a picture: waiting, running and finished ones, with a filter. */

import { element, icon, order, replace } from "../../dom.js";
import { button } from "../../elements/parts.js";
import { texts } from "../../texts.js";
import { promptOf } from "./stage.js";

/** @typedef {import("../../types.js").Video} Video */

const words = texts.video.gallery;
/** @type {Partial<Record<Video["status"], string>>} */
const COLORS = { failed: "bad", paused: "waiting", in_progress: "accent" };
/** @type {Partial<Record<Video["status"], Parameters<typeof icon>[0]>>} */
const ICONS = { queued: "clock", paused: "pause", failed: "warning" };
const FILTERS = /** @type {const} */ (["all", "active", "paused", "completed", "failed"]);

/**
 * Make the gallery.
 * @param {object} options
 * @param {import("./contents.js").Contents} options.files
 * @param {(video: Video) => void} options.choose
 * @param {() => Promise<void>} options.more
 * @returns {{element: HTMLElement, show: (videos: Video[], chosen: string | null, hasMore: boolean) => void}}
 */
export function gallery({ files, choose, more }) {
  const search = element("input", {
    type: "search",
    placeholder: words.search,
    "aria-label": words.search,
    on: { input: () => draw() },
  });
  const status = element(
    "select",
    { "aria-label": words.status, on: { change: () => draw() } },
    FILTERS.map((each) => element("option", { value: each }, words.filters[each])),
  );
  const grid = element("ul", { class: "gallery", "aria-label": words.label });
  const none = element("p", { class: "muted gallery-none" });
  const moreButton = button(null, words.more, more);
  const whole = element(
    "section",
    { class: "stack", "aria-label": words.title },
    element(
      "div",
      { class: "row between" },
      element("h2", {}, words.title),
      element(
        "div",
        { class: "row gallery-filter" },
        element("div", { class: "search" }, icon("search"), search),
        status,
      ),
    ),
    grid,
    none,
    element("div", { class: "row center" }, moreButton),
  );
  /** @type {Map<string, {element: HTMLElement, update: (video: Video, isChosen: boolean) => void}>} */
  const cards = new Map();
  /** @type {{videos: Video[], chosen: string | null, hasMore: boolean}} */
  let state = { videos: [], chosen: null, hasMore: false };

  function draw() {
    const wanted = search.value.trim().toLowerCase();
    const filter = /** @type {typeof FILTERS[number]} */ (status.value);
    const shown = state.videos.filter((video) => passes(video, filter) && contains(video, wanted));
    const ids = new Set(state.videos.map((video) => video.id));
    for (const id of cards.keys()) if (!ids.has(id)) cards.delete(id);
    const elements = shown.map((video) => {
      let card = cards.get(video.id);
      if (!card) cards.set(video.id, (card = makeCard(video, files, choose)));
      card.update(video, video.id === state.chosen);
      return card.element;
    });
    order(grid, elements);
    none.hidden = shown.length > 0;
    none.textContent = state.videos.length ? words.noMatch : words.none;
    moreButton.hidden = !state.hasMore;
  }

  return {
    element: whole,
    show(videos, chosen, hasMore) {
      state = { videos, chosen, hasMore };
      draw();
    },
  };
}

/**
 * @param {Video} video
 * @param {import("./contents.js").Contents} files
 * @param {(video: Video) => void} choose
 */
function makeCard(video, files, choose) {
  let current = video;
  let pictured = "";
  const picture = element("div", { class: "thumb" });
  const badge = element("span", { class: "badge" });
  const share = element("span", { class: "thumb-progress", "aria-hidden": "true" });
  const title = element("span", { class: "thumb-title" }, promptOf(video));
  const note = element("span", { class: "thumb-note number" });
  const open = element(
    "button",
    { type: "button", class: "thumb-button", on: { click: () => choose(current) } },
    element("span", { class: "thumb-frame" }, picture, share, badge),
    title,
    note,
  );
  const whole = element("li", { dataset: { id: video.id } }, open);

  /** @param {Video} next @param {boolean} isChosen */
  function update(next, isChosen) {
    current = next;
    open.setAttribute("aria-pressed", String(isChosen));
    badge.hidden = next.status === "completed";
    badge.className = `badge ${COLORS[next.status] ?? ""}`;
    badge.textContent =
      next.status === "in_progress" ? `${next.progress} %` : texts.video.statuses[next.status];
    share.style.setProperty("--share", String(next.status === "in_progress" ? next.progress / 100 : 0));
    note.textContent = words.note(next);
    whole.dataset.status = next.status;
    const preview = next.status === "completed" ? undefined : next.preview;
    const file = hasDraft(next) ? "draft" : next.status === "completed" ? "thumbnail" : null;
    const wanted = file ?? preview ?? next.status;
    if (pictured === wanted) return;
    pictured = wanted;
    /** @param {SVGElement | HTMLElement} shown */
    const put = (shown) => pictured === wanted && replace(picture, shown);
    const sign = () => put(icon(ICONS[next.status] ?? "video"));
    if (file) files.url(next.id, file).then((url) => put(still(file, url)), sign);
    else if (preview) put(still("thumbnail", preview));
    else sign();
  }
  return { element: whole, update };
}

/** @param {Video} video @returns {boolean} True if the job has stopped with a draft. */
function hasDraft(video) {
  return video.status === "paused" && video.draft_step !== null;
}

/** @param {"draft" | "thumbnail"} kind @param {string} url @returns {HTMLElement} A picture; a draft is a video. */
function still(kind, url) {
  if (kind === "thumbnail") return element("img", { src: url, alt: "", decoding: "async" });
  return element("video", { src: url, muted: true, preload: "auto", playsInline: true, "aria-hidden": true });
}

/** @param {Video} video @param {typeof FILTERS[number]} filter */
function passes(video, filter) {
  if (filter === "all") return true;
  if (filter === "active") return video.status === "queued" || video.status === "in_progress";
  return filter === "failed" ? ["failed", "cancelled"].includes(video.status) : video.status === filter;
}

/** @param {Video} video @param {string} wanted */
function contains(video, wanted) {
  if (!wanted) return true;
  const text = `${promptOf(video)} ${video.model} ${video.seed} ${video.size}`.toLowerCase();
  return wanted.split(/\s+/).every((word) => text.includes(word));
}
