// @ts-check
/** A note about an error, or about anything that the user should know where it happened. */

import { ApiError } from "../api.js";
import { element, icon } from "../dom.js";
import { texts } from "../texts.js";

/**
 * Return the sentence of an error. What no part of the studio expected goes to the console too.
 * @param {unknown} error
 * @returns {string}
 */
export function sentence(error) {
  if (error instanceof ApiError) return error.message;
  console.error(error);
  return error instanceof Error && error.message ? error.message : texts.common.failed;
}

/**
 * Make a note about an error; screen readers say it at once.
 * @param {unknown} error Error, or a sentence.
 * @returns {HTMLElement}
 */
export function errorNote(error) {
  const text = typeof error === "string" ? error : sentence(error);
  return element("div", { class: "note bad", role: "alert" }, icon("warning"), element("p", {}, text));
}

/**
 * Make a note.
 * @param {string} text Sentence.
 * @param {"" | "waiting"} [kind] Colour of the note.
 * @returns {HTMLElement}
 */
export function note(text, kind = "") {
  return element("div", { class: `note ${kind}` }, icon("info"), element("p", {}, text));
}

/** Make what the makers of a checkpoint say about it. @param {string} text @returns {HTMLElement} */
export function limits(text) {
  return element("p", { class: "field-note limits" }, icon("info"), text);
}
