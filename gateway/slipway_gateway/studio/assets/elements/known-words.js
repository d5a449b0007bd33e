// @ts-check
/** The words that a checkpoint knows, below a field, and those of the field's text that it does not know. */

import { element, icon } from "../dom.js";
import { texts } from "../texts.js";

const words = texts.knownWords;

/**
 * Make the list of the known words for an input.
 * @param {string[]} known Words in lower case.
 * @param {HTMLInputElement | HTMLTextAreaElement} input Field whose text is looked at.
 * @returns {HTMLElement}
 */
export function knownWords(known, input) {
  const all = new Set(known);
  const warning = element("p", { class: "field-note known-warning", role: "status" });
  const chips = known.map((word) =>
    element(
      "button",
      { type: "button", class: "known-word", on: { click: () => append(input, word) } },
      word,
    ),
  );
  const list = element(
    "details",
    { class: "known-words" },
    element("summary", { class: "field-note" }, icon("chevron"), words.title(known.length)),
    element("div", { class: "known-list" }, chips),
  );
  let shown = "";
  function look() {
    const unknown = unknownWords(input.value, all);
    const text = unknown.length ? words.unknown(unknown) : "";
    // The word that is being typed is not finished before a space or the end of the typing.
    if (text !== shown) warning.textContent = shown = text;
  }
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, 500);
  });
  input.addEventListener("change", look);
  look();
  return element("div", { class: "stack tight" }, warning, list);
}

/**
 * Return the words of a text that are not among the known ones, each once.
 * @param {string} text
 * @param {Set<string>} known Words in lower case.
 * @returns {string[]}
 */
export function unknownWords(text, known) {
  const found = text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return [...new Set(found)].filter((word) => !known.has(word));
}

/** @param {HTMLInputElement | HTMLTextAreaElement} input @param {string} word */
function append(input, word) {
  input.value = `${input.value.trimEnd()} ${word}`.trimStart();
  input.dispatchEvent(new Event("input", { bubbles: true }));
}
