// @ts-check
/** A line plot as SVG, with axes, thresholds and a legend, and a table of its numbers for screen readers. */

import { element, replace, svg } from "../dom.js";
import { texts } from "../texts.js";
import { table as tableOf } from "./parts.js";

/** @typedef {import("../types.js").Series} Series */

/** @typedef {import("../types.js").PlotOptions} PlotOptions */

/** @typedef {import("../types.js").Plot} Plot */

const WIDTH = 720;
/** On a narrow screen a plot has fewer units, so that its texts stay readable. */
const NARROWEST = 300;
/** Largest height, as a part of the width. */
const HIGHEST = 0.9;
const MARGIN = { left: 56, right: 14, top: 12, bottom: 42 };
const MOST_POINTS = 1500;
const MOST_ROWS = 200;

/** Make a plot without a line. @param {PlotOptions} first @returns {Plot} */
export function plot(first) {
  const figure = element("figure", { class: "stack tight" });
  let options = { ...first };
  let width = WIDTH;
  /** @type {Series[] | null} */
  let drawn = null;

  function show() {
    if (!drawn) return;
    const wasOpen = figure.querySelector("details")?.open ?? false;
    replace(
      figure,
      drawing(drawn, options, width),
      legend(drawn),
      options.table === false ? null : table(drawn, options, wasOpen),
    );
  }

  new ResizeObserver(() => {
    const wanted = Math.max(NARROWEST, Math.min(WIDTH, figure.clientWidth));
    if (!figure.clientWidth || wanted === width) return;
    width = wanted;
    show();
  }).observe(figure);
  return {
    element: figure,
    draw(series, changes = {}) {
      options = { ...options, ...changes };
      drawn = series;
      show();
    },
  };
}

/** @param {Series} series @param {number} index */
function colorOf(series, index) {
  return series.color ?? `var(--plot-${(index % 4) + 1})`;
}

/** @param {Series[]} series @param {PlotOptions} options @param {number} width */
function drawing(series, options, width) {
  const height = Math.min(options.height ?? 300, HIGHEST * width);
  const area = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  let x = options.xRange ?? rangeOf(series.flatMap((each) => each.points.map((point) => point[0])));
  let y =
    options.yRange ??
    rangeOf(
      series.flatMap((each) => [
        ...each.points.map((point) => point[1]),
        ...(each.threshold === undefined ? [] : [each.threshold]),
      ]),
    );
  if (options.sameScale) [x, y] = sameScale(x, y, area);
  const px = (/** @type {number} */ value) => MARGIN.left + ((value - x[0]) / (x[1] - x[0])) * area.width;
  const py = (/** @type {number} */ value) => MARGIN.top + (1 - (value - y[0]) / (y[1] - y[0])) * area.height;
  const right = MARGIN.left + area.width;
  const bottom = MARGIN.top + area.height;
  const lines = ticks(y).map((value) => [
    svg("line", { class: "grid-line", x1: MARGIN.left, x2: right, y1: py(value), y2: py(value) }),
    svg("text", { x: MARGIN.left - 8, y: py(value) + 4, "text-anchor": "end" }, label(value)),
  ]);
  const marks = ticks(x).map((value) => [
    svg("line", { class: "axis", x1: px(value), x2: px(value), y1: bottom, y2: bottom + 5 }),
    svg("text", { x: px(value), y: bottom + 19, "text-anchor": "middle" }, label(value)),
  ]);
  const curves = series.map((each, index) => {
    const group = svg("g", {});
    group.style.setProperty("--series", colorOf(each, index));
    const d = thinned(each.points)
      .map(([a, b], at) => `${at ? "L" : "M"}${px(a).toFixed(1)} ${py(b).toFixed(1)}`)
      .join("");
    if (each.threshold !== undefined) {
      group.append(
        svg("line", {
          class: "threshold",
          x1: MARGIN.left,
          x2: right,
          y1: py(each.threshold),
          y2: py(each.threshold),
        }),
      );
    }
    if (d) {
      group.append(svg("path", { class: "series", d, "stroke-dasharray": each.dashed ? "5 5" : undefined }));
    }
    for (const at of each.markers ?? []) {
      const point = each.points[at];
      if (point) group.append(svg("circle", { class: "marker", cx: px(point[0]), cy: py(point[1]), r: 5 }));
    }
    return group;
  });
  return svg(
    "svg",
    { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.title },
    ...lines.flat(),
    svg("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }),
    ...marks.flat(),
    svg("text", { x: MARGIN.left + area.width / 2, y: height - 4, "text-anchor": "middle" }, options.xLabel),
    svg(
      "text",
      { x: -(MARGIN.top + area.height / 2), y: 13, transform: "rotate(-90)", "text-anchor": "middle" },
      options.yLabel,
    ),
    ...curves,
  );
}

/** @param {Series[]} series */
function legend(series) {
  return element(
    "ul",
    { class: "legend" },
    series.map((each, index) =>
      element(
        "li",
        { style: { "--series": colorOf(each, index) } },
        element("span", { class: `legend-line${each.dashed ? " dashed" : ""}` }),
        each.name,
      ),
    ),
  );
}

/** @param {Series[]} series @param {PlotOptions} options @param {boolean} open */
function table(series, options, open) {
  const rows = series.flatMap((each) =>
    every(each.points, MOST_ROWS).map(([a, b]) => [each.name, label(a), label(b)]),
  );
  const heads = ["", options.xLabel, options.yLabel];
  const place = element("div", { class: "table-scroll" });
  const details = element(
    "details",
    { open, on: { toggle: fill } },
    element("summary", { class: "small muted" }, texts.common.plot.table),
    place,
  );
  function fill() {
    if (details.open) replace(place, tableOf("", heads, rows));
  }
  fill();
  return details;
}

/** @param {number[]} values @returns {[number, number]} */
function rangeOf(values) {
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return [0, 1];
  const low = finite.reduce((a, b) => Math.min(a, b));
  const high = finite.reduce((a, b) => Math.max(a, b));
  const room = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - room, high + room];
}

/**
 * Widen one of two ranges, so that a unit is as long on both axes.
 * @param {[number, number]} x @param {[number, number]} y @param {{width: number, height: number}} area
 * @returns {[[number, number], [number, number]]}
 */
function sameScale(x, y, area) {
  const unit = Math.max((x[1] - x[0]) / area.width, (y[1] - y[0]) / area.height);
  return [around(x, unit * area.width), around(y, unit * area.height)];
}

/** @param {[number, number]} range @param {number} length @returns {[number, number]} */
function around([low, high], length) {
  const middle = (low + high) / 2;
  return [middle - length / 2, middle + length / 2];
}

/** @param {[number, number]} range @returns {number[]} Four to eight round values within a range. */
function ticks([low, high]) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10);
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) {
    found.push(index * step);
  }
  return found;
}

/** @param {number} value @returns {string} */
function label(value) {
  return Math.abs(value) < 1e-12 ? "0" : String(Number(value.toPrecision(4)));
}

/** @param {[number, number][]} points @returns {[number, number][]} */
function thinned(points) {
  return every(points, MOST_POINTS).filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
}

/** @param {[number, number][]} points @param {number} most @returns {[number, number][]} */
function every(points, most) {
  const step = Math.max(1, Math.ceil(points.length / most));
  return points.filter((_, index) => index % step === 0 || index === points.length - 1);
}
