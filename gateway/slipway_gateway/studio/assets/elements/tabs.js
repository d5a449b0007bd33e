// @ts-check
/** A small choice between a few things of which one is shown, as a row of buttons. */

import { element, icon } from "../dom.js";

/**
 * @template {string} T
 * @typedef {object} Choice
 * @property {T} value
 * @property {string} label
 * @property {Parameters<typeof icon>[0]} [icon]
 */

/**
 * Make a row of buttons of which one is pressed. The arrow keys go from one to the next.
 * @template {string} T
 * @param {string} label Name of the choice, for screen readers.
 * @param {Choice<T>[]} choices
 * @param {T} first Value that is chosen at first.
 * @param {(value: T) => void} onChoose Function that is called with a value that the user chooses.
 * @returns {{element: HTMLElement, value: () => T, choose: (value: T) => void}}
 */
export function tabs(label, choices, first, onChoose) {
  let chosen = first;
  const buttons = choices.map((choice) =>
    element(
      "button",
      { type: "button", class: "segment", role: "radio", on: { click: () => pick(choice.value, true) } },
      choice.icon ? icon(choice.icon) : null,
      choice.label,
    ),
  );
  const group = element(
    "div",
    { class: "segments", role: "radiogroup", "aria-label": label, on: { keydown } },
    buttons,
  );

  /** @param {T} value @param {boolean} tell */
  function pick(value, tell) {
    const changed = value !== chosen;
    chosen = value;
    choices.forEach((choice, index) => {
      buttons[index].setAttribute("aria-checked", String(choice.value === value));
      buttons[index].tabIndex = choice.value === value ? 0 : -1;
    });
    if (tell && changed) onChoose(value);
  }

  /** @param {KeyboardEvent} event */
  function keydown(event) {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const index = choices.findIndex((choice) => choice.value === chosen);
    const next = (index + move + choices.length) % choices.length;
    pick(choices[next].value, true);
    buttons[next].focus();
  }

  pick(first, false);
  return { element: group, value: () => chosen, choose: (value) => pick(value, false) };
}
