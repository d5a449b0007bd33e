// @ts-check
/** Failures of the last hour: by model, and equal ones of a model together. */

import { element, icon } from "../../dom.js";
import { texts } from "../../texts.js";
import { rows, say } from "./rows.js";

/** @typedef {import("../../types.js").Failure} Failure */
/** @typedef {{model: string, code: string, message: string, newest: Failure, number: number}} Group */

const words = texts.fleet.failures;

/**
 * Make the list of the failures.
 *
 * @returns {{element: HTMLElement, show: (failures: Failure[]) => void}}
 */
export function failureList() {
  const list = element("ul", { class: "fleet-failures" });
  const none = element("p", { class: "with-icon muted" }, icon("check"), words.none);
  const made = element(
    "section",
    { class: "card stack", "aria-label": words.title },
    element("h2", {}, words.title),
    none,
    list,
  );
  const showGroups = rows(list, (/** @type {Group} */ group) => keyOf(group), groupItem);
  return {
    element: made,
    show(failures) {
      none.hidden = failures.length > 0;
      list.hidden = failures.length === 0;
      showGroups(grouped(failures));
    },
  };
}

/**
 * Join failures of one model with one text; the newest group comes first.
 *
 * @param {Failure[]} failures The newest first.
 * @returns {Group[]}
 */
export function grouped(failures) {
  /** @type {Map<string, Group>} */
  const groups = new Map();
  for (const failure of failures) {
    const group = groups.get(keyOf(failure));
    if (group) group.number += 1;
    else groups.set(keyOf(failure), { ...failure, newest: failure, number: 1 });
  }
  return [...groups.values()];
}

/** @param {{model: string, code: string, message: string}} failure */
function keyOf({ model, code, message }) {
  return JSON.stringify([model, code, message]);
}

/** @param {Group} first @returns {import("./rows.js").Row<Group>} */
function groupItem(first) {
  const number = element("span", { class: "badge bad" });
  const when = element("span", { class: "muted small" });
  const video = element("span", { class: "muted small fleet-address" });
  const made = element(
    "li",
    { class: "stack tight" },
    element(
      "div",
      { class: "row" },
      element("span", { class: "strong" }, first.model),
      element("span", { class: "badge" }, first.code),
      number,
      when,
    ),
    element("p", { class: "fleet-message" }, first.message || words.noText),
    video,
  );
  return {
    element: made,
    show(group) {
      number.hidden = group.number < 2;
      say(number, words.times(group.number));
      say(when, words.ago(Date.now() / 1000 - group.newest.at));
      say(video, words.newest(group.newest.video_id ?? group.newest.session_id ?? ""));
    },
  };
}
