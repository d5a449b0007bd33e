// @ts-check
/** What many views are made of: buttons, cards, labelled inputs, tables and dialogs. */

import { element, icon } from "../dom.js";
import { texts } from "../texts.js";

/** @typedef {Parameters<typeof icon>[0]} Sign */
/** @typedef {import("../dom.js").Child} Child */

/**
 * Make a button.
 * @param {Sign | null} sign Icon before the words.
 * @param {string} label
 * @param {((event: any) => void) | null} click Null for a button that sends its form.
 * @param {string} [kind] More classes.
 */
export function button(sign, label, click, kind = "") {
  return element(
    "button",
    { type: click ? "button" : "submit", class: `button ${kind}`, on: click ? { click } : {} },
    sign && icon(sign),
    label,
  );
}

/** Make a button without words. @param {Sign} sign @param {string} label @param {() => void} click */
export function iconButton(sign, label, click) {
  const made = button(sign, "", click, "only-icon");
  made.title = label;
  made.setAttribute("aria-label", label);
  return made;
}

/** Make a card with a title. @param {string} title @param {...(Child | Child[])} children */
export function card(title, ...children) {
  return element("div", { class: "card stack" }, element("h2", {}, title), ...children);
}

/** Make a card that screen readers list. @param {string} title @param {...(Child | Child[])} children */
export function section(title, ...children) {
  const properties = { class: "card stack", "aria-label": title };
  return element("section", properties, element("h2", {}, title), ...children);
}

/**
 * Make a label above an input.
 * @param {string} label
 * @param {HTMLElement} input Input with an id.
 * @param {Child} [shown] What stands below the label; by default the input alone.
 */
export function labelled(label, input, shown = input) {
  return element(
    "div",
    { class: "stack tight" },
    element("label", { class: "field-label", for: input.id }, label),
    shown,
  );
}

/**
 * Make a table.
 * @param {string} kind Classes.
 * @param {string[]} heads Titles of the columns.
 * @param {Child[][]} rows Cells, or what is in them.
 * @param {number[]} [numbers] Columns of numbers.
 */
export function table(kind, heads, rows, numbers = []) {
  const side = (/** @type {number} */ column) => (numbers.includes(column) ? "number" : "");
  return element(
    "table",
    { class: `table ${kind}` },
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        heads.map((head, at) => element("th", { scope: "col", class: side(at) }, head)),
      ),
    ),
    element(
      "tbody",
      {},
      rows.map((row) =>
        element(
          "tr",
          {},
          row.map((cell, at) =>
            cell instanceof HTMLTableCellElement ? cell : element("td", { class: side(at) }, cell),
          ),
        ),
      ),
    ),
  );
}

/**
 * Show a dialog until it is closed.
 * @param {string} title
 * @param {string} kind More classes.
 * @param {HTMLElement} content What stands below the title.
 * @param {() => void} onClose
 * @returns {HTMLDialogElement}
 */
export function dialog(title, kind, content, onClose) {
  const made = element(
    "dialog",
    { class: `dialog stack ${kind}`, "aria-label": title, on: { close: () => (made.remove(), onClose()) } },
    element(
      "div",
      { class: "row between" },
      element("h2", {}, title),
      iconButton("close", texts.common.close, () => made.close()),
    ),
    content,
  );
  document.body.append(made);
  made.showModal();
  const first = content.querySelector("input, textarea");
  if (first instanceof HTMLElement) first.focus();
  return made;
}

/**
 * Make a view of two columns, which are one on a phone.
 * @param {string} label Name of the view, for screen readers.
 * @param {string} kind More classes.
 * @param {Child[]} left
 * @param {Child[]} right
 */
export function columns(label, kind, left, right) {
  return element(
    "section",
    { class: `view columns ${kind}` },
    element("h1", { class: "visually-hidden" }, label),
    element("div", { class: "stack" }, left),
    element("div", { class: "stack" }, right),
  );
}

/**
 * Make a view for the models behind one route.
 * @param {string} id
 * @param {string} label
 * @param {Sign} sign
 * @param {string} route
 * @param {(context: import("../types.js").Context) => {element: HTMLElement, close: () => void}} make
 * @returns {import("../types.js").View}
 */
export function routeView(id, label, sign, route, make) {
  const models = (/** @type {import("../types.js").Model[]} */ all) =>
    all.filter((model) => model.routes.includes(route));
  const build = (/** @type {import("../types.js").Context} */ context) => {
    const made = make(context);
    return { element: made.element, close: () => made.close() };
  };
  return { id, label, icon: sign, models, build };
}
