// @ts-check
/**
 * Rows that stay the same elements while their content changes, so that a reader's place, an open part and the
 * keyboard's focus survive each new look at the fleet.
 */

import { order } from "../../dom.js";

/**
 * @template T
 * @typedef {object} Row
 * @property {HTMLElement} element
 * @property {(item: T) => void} show Function that shows an item in the element.
 */

/**
 * Keep rows for items.
 *
 * @template T
 * @param {HTMLElement} parent Element that has the rows and nothing else.
 * @param {(item: T) => string} key Function that returns what stays the same of an item.
 * @param {(item: T) => Row<T>} make Function that makes the row of a new item.
 * @returns {(items: T[]) => void} Function that shows items in their order.
 */
export function rows(parent, key, make) {
  /** @type {Map<string, Row<T>>} */
  let known = new Map();
  return (items) => {
    /** @type {Map<string, Row<T>>} */
    const now = new Map();
    for (const item of items) {
      const row = known.get(key(item)) ?? make(item);
      row.show(item);
      now.set(key(item), row);
    }
    order(
      parent,
      [...now.values()].map((row) => row.element),
    );
    known = now;
  };
}

/**
 * Give an element another text, if it is another one.
 *
 * @param {HTMLElement} target @param {string} text
 */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}
