// @ts-check
/** A meter with the last minutes: how much of a machine's part is used, now and before. */

import { element, svg } from "../../dom.js";
import { say } from "./rows.js";

const MOST_POINTS = 90;
const WIDTH = 180;
const HEIGHT = 34;
/** Share from which a part of a machine counts as full. */
const FULL = 0.9;

/** @typedef {import("../../types.js").Meter} Meter */

/**
 * Make a meter.
 *
 * @param {string} label Name of what is used.
 * @returns {Meter}
 */
export function meter(label) {
  const words = element("span", { class: "number meter-text" });
  const area = svg("path", { class: "meter-area" });
  const line = svg("path", { class: "meter-line" });
  const drawing = svg(
    "svg",
    {
      class: "meter-drawing",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      "aria-hidden": "true",
      focusable: "false",
    },
    area,
    line,
  );
  const fill = element("div", { class: "meter-fill" });
  const bar = element(
    "div",
    { class: "meter-bar", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 },
    fill,
  );
  const made = element(
    "div",
    { class: "meter" },
    element("div", { class: "row between meter-head" }, element("span", { class: "muted" }, label), words),
    drawing,
    bar,
  );
  /** @type {number[]} */
  const points = [];
  return {
    element: made,
    show(share, text) {
      say(words, text);
      made.classList.toggle("unknown", share === null);
      if (share === null) {
        bar.removeAttribute("role");
        return;
      }
      bar.setAttribute("role", "meter");
      bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
      bar.setAttribute("aria-valuetext", text);
      made.classList.toggle("full", share >= FULL);
      fill.style.setProperty("--share", String(share));
      points.push(share);
      if (points.length > MOST_POINTS) points.shift();
      const path = pathOf(points);
      line.setAttribute("d", path);
      area.setAttribute("d", path && `${path} V${HEIGHT} H${xOf(0, points.length)} Z`);
    },
  };
}

/** @param {number} index @param {number} number @returns {number} Place, the newest at the right edge. */
function xOf(index, number) {
  return WIDTH - ((number - 1 - index) * WIDTH) / (MOST_POINTS - 1);
}

/** @param {number[]} points @returns {string} */
function pathOf(points) {
  if (points.length < 2) return "";
  const places = points.map(
    (share, index) =>
      `${xOf(index, points.length).toFixed(1)} ${(HEIGHT - 1 - Math.min(share, 1) * (HEIGHT - 2)).toFixed(1)}`,
  );
  return `M${places.join(" L")}`;
}
