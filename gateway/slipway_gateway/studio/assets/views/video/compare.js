// @ts-check
/** Two videos side by side, at the same frame, with their difference and its size in decibels. */

import { element, icon, replace } from "../../dom.js";
import { errorNote } from "../../elements/error-note.js";
import { button, dialog } from "../../elements/parts.js";
import { plot } from "../../elements/plot.js";
import { texts } from "../../texts.js";
import { wait } from "../../wait.js";
import { drawDifference, frameReader, psnr_db } from "./frames.js";
import { promptOf } from "./stage.js";

/** @typedef {import("../../types.js").Video} Video */

const words = texts.video.compare;
/** Largest value in the plot: equal frames have no finite one. */
const EQUAL_DB = 100;

/**
 * Show two videos in a dialog.
 * @param {Video} left
 * @param {Video} right
 * @param {import("./contents.js").Contents} files
 */
export function compareDialog(left, right, files) {
  const body = element("div", { class: "stack" }, element("p", { class: "muted" }, texts.common.loading));
  const stop = new AbortController();
  dialog(words.title, "wide", body, () => stop.abort());
  fill(body, left, right, files, stop.signal).catch((error) => replace(body, errorNote(error)));
}

/**
 * @param {HTMLElement} body
 * @param {Video} left
 * @param {Video} right
 * @param {import("./contents.js").Contents} files
 * @param {AbortSignal} signal
 */
async function fill(body, left, right, files, signal) {
  const readers = await Promise.all(
    [left, right].map(async (video) => frameReader(await files.url(video.id, "video"), video.fps)),
  );
  const count = Math.min(...readers.map((reader) => reader.count));
  const isSameSize = readers[0].width === readers[1].width && readers[0].height === readers[1].height;
  const canvases = [words.left, words.right, words.difference].map((name) =>
    element("canvas", { role: "img", "aria-label": name }),
  );
  const slider = element("input", {
    type: "range",
    min: "0",
    max: String(count - 1),
    step: "1",
    value: "0",
    "aria-label": words.frame,
  });
  const value = element("p", { class: "number compare-value" });
  const gain = element(
    "select",
    { "aria-label": words.gain },
    [1, 4, 16].map((each) => element("option", { value: String(each) }, words.times(each))),
  );
  gain.value = "4";
  const play = button(null, "", toggle);
  const curve = plot({
    title: words.curve,
    xLabel: words.frame,
    yLabel: words.psnr,
    height: 190,
    xRange: [0, Math.max(1, count - 1)],
  });
  /** @type {(number | undefined)[]} */
  const measured = new Array(count).fill(undefined);
  /** @type {AbortController | null} */
  let playing = null;
  /** @type {Promise<void>} */
  let drawing = Promise.resolve();

  /** @param {number} index */
  function show(index) {
    slider.value = String(index);
    drawing = drawing
      .then(() => (signal.aborted ? undefined : draw(index)))
      .catch((error) => replace(body, errorNote(error)));
    return drawing;
  }

  /** @param {number} index */
  async function draw(index) {
    const [a, b] = await Promise.all(readers.map((reader, at) => reader.draw(index, canvases[at])));
    const parts = [words.at(index + 1, count)];
    if (isSameSize) {
      drawDifference(a, b, Number(gain.value), canvases[2]);
      const found = psnr_db(a, b);
      measured[index] = found;
      parts.push(Number.isFinite(found) ? words.db(found) : words.equal);
    }
    value.textContent = parts.join(" · ");
  }

  async function toggle() {
    playing?.abort();
    const mine = (playing = playing ? null : new AbortController());
    label();
    while (mine && !mine.signal.aborted && !signal.aborted) {
      const begin_ms = performance.now();
      await show((Number(slider.value) + 1) % count);
      const rest_ms = 1000 / readers[0].fps - (performance.now() - begin_ms);
      await wait(Math.max(0, rest_ms));
    }
  }

  function label() {
    replace(play, icon(playing ? "pause" : "play"), playing ? words.pause : words.play);
  }

  /** Measure every frame once, so that the curve is whole. */
  async function measure() {
    for (let index = 0; index < count && !signal.aborted; index++) {
      if (measured[index] === undefined) await show(index);
    }
    const points = measured.map(
      (db, index) => /** @type {[number, number]} */ ([index, Math.min(db ?? 0, EQUAL_DB)]),
    );
    curve.draw([{ name: words.psnr, points }]);
    const finite = measured.filter((db) => db !== undefined && Number.isFinite(db)).map(Number);
    const mean = finite.reduce((a, b) => a + b, 0) / (finite.length || 1);
    summary.textContent = finite.length ? words.mean(mean, Math.min(...finite)) : words.allEqual;
    await show(0);
  }

  const summary = element("p", { class: "strong number" });
  slider.addEventListener("input", () => show(Number(slider.value)));
  gain.addEventListener("change", () => show(Number(slider.value)));
  label();
  const aspect = { "--aspect": `${readers[0].width} / ${readers[0].height}` };
  const columns = [
    [caption(left), canvases[0]],
    [caption(right), canvases[1]],
    ...(isSameSize ? [[element("span", { class: "row between" }, words.difference, gain), canvases[2]]] : []),
  ];
  replace(
    body,
    element(
      "div",
      { class: "compare", style: aspect },
      columns.map(([title, canvas]) =>
        element("figure", { class: "stack tight" }, element("figcaption", { class: "small" }, title), canvas),
      ),
    ),
    element("div", { class: "row" }, play, element("div", { class: "grow" }, slider)),
    value,
    isSameSize ? summary : element("p", { class: "muted" }, words.otherSize),
    isSameSize ? curve.element : null,
  );
  await (isSameSize ? measure() : show(0));
}

/** @param {Video} video */
function caption(video) {
  return element(
    "span",
    { class: "compare-caption" },
    element("span", { class: "one-line strong" }, promptOf(video)),
    element("span", { class: "muted number" }, words.caption(video)),
  );
}
