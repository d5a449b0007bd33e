// @ts-check
/** Errors of both trajectories against the ground truth, or the mean corrections where there is none. */

import { element } from "../../dom.js";
import { card, table } from "../../elements/parts.js";
import { texts } from "../../texts.js";

/** @typedef {import("./trajectories.js").Answer} Answer */

const words = texts.motion;
const ROWS = /** @type {const} */ ([
  ["ate_m", "m"],
  ["aoe_deg", "°"],
  ["rte_m", "m"],
  ["roe_deg", "°"],
]);

/** @param {Answer} answer @returns {HTMLElement} */
export function errorTable({ errors, mean_correction_acc: acc, mean_correction_gyro: gyro }) {
  const corrections = element(
    "dl",
    { class: "facts motion-facts" },
    element("dt", {}, words.correctionAcc),
    element("dd", { class: "number" }, words.vector(acc, "m/s²")),
    element("dt", {}, words.correctionGyro),
    element("dd", { class: "number" }, words.vector(gyro, "rad/s")),
  );
  const about = errors && [tableOf(errors), element("p", { class: "muted small" }, words.errorsText)];
  return card(errors ? words.errors : words.corrections, about, corrections);
}

/** @param {NonNullable<Answer["errors"]>} errors */
function tableOf({ raw, corrected }) {
  const rows = ROWS.flatMap(([name, unit]) => {
    const before = raw[name];
    const after = corrected[name];
    if (before === null || after === null) return [];
    const change = before ? after / before - 1 : 0;
    return [
      [
        element("th", { scope: "row" }, words.errorNames[name]),
        words.value(before, unit),
        element("td", { class: "number strong" }, words.value(after, unit)),
        element("td", { class: `number change ${change < 0 ? "better" : "worse"}` }, words.change(change)),
      ],
    ];
  });
  const heads = [words.error, words.names.raw, words.names.corrected, words.changed];
  return element("div", { class: "table-scroll" }, table("motion-errors", heads, rows, [1, 2, 3]));
}
