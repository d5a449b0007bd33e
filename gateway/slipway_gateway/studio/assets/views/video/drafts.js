// @ts-check
/** A contact sheet: the same request with several seeds, each stopped after a few steps. */

import { element, icon, order, replace } from "../../dom.js";
import { button, section } from "../../elements/parts.js";
import { keepSetting, setting } from "../../settings.js";
import { texts } from "../../texts.js";
import { isActive } from "./jobs.js";
import { player } from "./stage.js";

/** @typedef {import("../../types.js").Video} Video */

/** @typedef {import("../../types.js").DraftSheet} DraftSheet */

const words = texts.video.drafts;
const KEPT = "drafts";
/** Share of the steps after which a draft shows what the video will be. */
const SHARE = 0.4;
export const DRAFTS = 4;

/**
 * Return the fields that make each draft of a request different from the request.
 * @param {number} seed First seed.
 * @param {number} steps
 * @returns {{seed: number, stop_after_step: number, draft: string}[]}
 */
export function draftFields(seed, steps) {
  const stop = Math.min(Math.max(1, Math.round(SHARE * steps)), Math.max(1, steps - 1));
  return Array.from({ length: DRAFTS }, (_, index) => ({
    seed: seed + index,
    stop_after_step: stop,
    draft: "video",
  }));
}

/**
 * Make the contact sheet. It is hidden while there are no drafts.
 * @param {object} options
 * @param {import("./contents.js").Contents} options.files
 * @param {(video: Video) => Promise<void>} options.resume Function that continues a draft.
 * @param {(videos: Video[]) => Promise<void>} options.remove Function that deletes drafts.
 * @param {(video: Video) => void} options.choose
 * @returns {DraftSheet}
 */
export function draftSheet({ files, resume, remove, choose }) {
  /** @type {string[]} */
  let ids = setting(KEPT, []);
  /** @type {(id: string) => Video | undefined} */
  let get = () => undefined;
  const grid = element("ul", { class: "drafts" });
  const whole = section(
    words.title,
    element("p", { class: "muted small" }, words.help),
    grid,
    element("div", { class: "row end" }, button("close", words.finish, finish)),
  );
  whole.hidden = true;
  /** @type {Map<string, {element: HTMLElement, update: (video: Video) => void}>} */
  let cells = new Map();

  async function finish() {
    const rest = ids
      .map(get)
      .filter((video) => video?.status === "paused" || (video && isActive(video) && isDraft(video)));
    keep([]);
    await remove(/** @type {Video[]} */ (rest));
  }

  /** @param {string[]} next */
  function keep(next) {
    ids = next;
    keepSetting(KEPT, ids);
    cells = new Map();
    draw();
  }

  function draw() {
    const videos = ids.map(get).filter((video) => video !== undefined);
    whole.hidden = videos.length === 0;
    const elements = videos.map((video) => {
      let cell = cells.get(video.id);
      if (!cell) cells.set(video.id, (cell = makeCell(video)));
      cell.update(video);
      return cell.element;
    });
    order(grid, elements);
  }

  /** @param {Video} first */
  function makeCell(first) {
    let current = first;
    let showing = "";
    const picture = element("div", {
      class: "draft-picture",
      style: { "--aspect": first.size.replace("x", " / ") },
    });
    const state = element("p", { class: "small muted number" });
    const go = button("play", words.resume, () => resume(current), "small primary");
    const open = button(null, words.open, () => choose(current), "small");
    const row = element("div", { class: "row between" }, state, go, open);
    /** @param {Video} video */
    async function update(video) {
      current = video;
      go.hidden = video.status !== "paused";
      open.hidden = isDraft(video) || video.status === "paused";
      state.textContent = words.state(video);
      picture.style.setProperty("--share", String(video.steps ? video.step / video.steps : 0));
      const variant = video.status === "completed" ? "video" : video.draft_step !== null ? "draft" : "";
      if (showing === variant && picture.childNodes.length) return;
      showing = variant;
      if (!variant) return replace(picture, icon("clock"));
      try {
        replace(picture, quiet(player(await files.url(video.id, variant), words.seed(video.seed))));
      } catch {
        replace(picture, icon("warning"));
      }
    }
    return { element: element("li", { class: "draft", dataset: { id: first.id } }, picture, row), update };
  }

  return {
    element: whole,
    begin: keep,
    show(read) {
      get = read;
      draw();
    },
  };
}

/** @param {Video} video @returns {boolean} True if the job stops before its last step. */
function isDraft(video) {
  return typeof video.request.stop_after_step === "number";
}

/** @param {HTMLVideoElement} video */
function quiet(video) {
  video.controls = !video.autoplay;
  return video;
}
