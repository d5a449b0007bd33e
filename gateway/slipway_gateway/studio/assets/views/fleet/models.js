// @ts-check
/** Tables of the models: those that take requests with their work, and the networks that they call. */

import { element } from "../../dom.js";
import { texts } from "../../texts.js";
import { rows, say } from "./rows.js";
import { KINDS } from "./servers.js";

/** @typedef {import("../../types.js").FleetModel} FleetModel */
/** @typedef {{title: string, wide?: boolean, number?: boolean, show: (cell: HTMLElement, model: FleetModel) => void}} Column */

const words = texts.fleet.models;

/** @type {Column} */
const STATE = {
  title: words.columns.state,
  show: (cell, model) => {
    const badge = cell.querySelector("span") ?? cell.appendChild(element("span", {}));
    badge.className = `badge ${KINDS[model.state]}`;
    say(badge, texts.fleet.stateOn(model.state, model.ready, model.servers));
  },
};

/** @type {Column[]} */
const OF_WORK = [
  STATE,
  {
    title: words.columns.waiting,
    number: true,
    show: (cell, { queue, sessions }) => {
      const number = queue ? queue.waiting : sessions ? sessions.waiting : null;
      say(cell, number === null ? words.none : words.waiting(number, queue?.oldest_s ?? null));
    },
  },
  {
    title: words.columns.running,
    number: true,
    show: (cell, { queue, requests_running: requests }) => {
      const number = queue ? Math.max(queue.running, requests ?? 0) : requests;
      say(cell, number === null ? words.none : words.running(number, queue?.paused ?? 0));
    },
  },
  {
    title: words.columns.sessions,
    number: true,
    show: (cell, { sessions }) =>
      say(cell, sessions ? words.sessions(sessions.open, sessions.limit) : words.none),
  },
  {
    title: words.columns.failures,
    number: true,
    show: (cell, { queue, sessions, failures }) => {
      cell.classList.toggle("fleet-bad", failures > 0);
      say(cell, queue || sessions || failures ? String(failures) : words.none);
    },
  },
];

/** @type {Column[]} */
const OF_EXPORT = [
  STATE,
  { title: words.columns.engine, show: (cell, { engine }) => say(cell, engine ?? words.untold) },
  { title: words.columns.precision, show: (cell, { precision }) => say(cell, precision ?? words.untold) },
  { title: words.columns.parity, wide: true, show: showParity },
];

/**
 * Make the two tables of the models.
 *
 * @returns {{element: HTMLElement, show: (models: FleetModel[]) => void}}
 */
export function modelTables() {
  const work = table(words.work, OF_WORK);
  const networks = table(words.networks, OF_EXPORT);
  const none = element("p", { class: "muted" }, words.noNetworks);
  const others = element("ul", { class: "fleet-others" });
  const showOthers = rows(others, (/** @type {FleetModel} */ model) => model.id, otherItem);
  const programs = element("div", { class: "stack tight" }, element("h3", {}, words.others), others);
  const made = element(
    "div",
    { class: "stack fleet-models" },
    section(words.work, words.workNote, work.element),
    section(words.networks, words.networksNote, networks.element, none, programs),
  );
  return {
    element: made,
    show(models) {
      work.show(models.filter(takesRequests));
      const exported = models.filter((model) => model.engine !== null);
      const rest = models.filter((model) => model.engine === null && !takesRequests(model));
      showOthers(rest);
      programs.hidden = rest.length === 0;
      networks.show(exported);
      networks.element.hidden = exported.length === 0;
      none.hidden = exported.length > 0;
    },
  };
}

/**
 * Return whether callers ask for a model, so that it has work of its own.
 *
 * @param {FleetModel} model
 */
export function takesRequests(model) {
  return model.queue !== null || model.sessions !== null || model.requests_running !== null;
}

/** @param {FleetModel} first @returns {import("./rows.js").Row<FleetModel>} */
function otherItem(first) {
  const dot = element("span", { class: "dot", "aria-hidden": "true" });
  const state = element("span", { class: "muted small" });
  return {
    element: element("li", { class: "with-icon" }, dot, first.id, state),
    show(model) {
      dot.className = `dot ${KINDS[model.state]}`;
      say(state, texts.fleet.stateOn(model.state, model.ready, model.servers));
    },
  };
}

/** @param {string} title @param {string} text @param {...HTMLElement} parts */
function section(title, text, ...parts) {
  return element(
    "section",
    { class: "card stack", "aria-label": title },
    element(
      "div",
      { class: "stack tight" },
      element("h2", {}, title),
      element("p", { class: "muted small" }, text),
    ),
    parts,
  );
}

/**
 * @param {string} title
 * @param {Column[]} columns
 * @returns {{element: HTMLElement, show: (models: FleetModel[]) => void}}
 */
function table(title, columns) {
  const body = element("tbody", {});
  const head = columns.map((column) =>
    element("th", { scope: "col", class: column.number ? "number" : "" }, column.title),
  );
  const made = element(
    "table",
    { class: "table fleet-table" },
    element("caption", { class: "visually-hidden" }, title),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, words.columns.model), head)),
    body,
  );
  return {
    element: made,
    show: rows(
      body,
      (model) => model.id,
      (model) => row(model, columns),
    ),
  };
}

/** @param {FleetModel} first @param {Column[]} columns @returns {import("./rows.js").Row<FleetModel>} */
function row(first, columns) {
  const cells = columns.map((column) =>
    element("td", {
      class: [column.number ? "number" : "", column.wide ? "wide" : ""].join(" ").trim(),
      dataset: { title: column.title },
    }),
  );
  return {
    element: element("tr", {}, element("th", { scope: "row", class: "fleet-name" }, first.id), cells),
    show: (model) => columns.forEach((column, index) => column.show(cells[index], model)),
  };
}

/** @param {HTMLElement} cell @param {FleetModel} model */
function showParity(cell, { parity }) {
  const text = parity ? JSON.stringify(parity) : "";
  if (cell.dataset.shown === text) return;
  cell.dataset.shown = text;
  if (!parity) {
    cell.replaceChildren(words.untold);
    return;
  }
  cell.replaceChildren(
    element(
      "span",
      { class: "row fleet-parity" },
      element("span", { class: "strong number" }, words.ofBound(parity.of_bound)),
      parity.left_out > 0
        ? element("span", { class: "badge waiting" }, words.leftOut(parity.left_out))
        : element("span", { class: "muted small" }, words.points(parity.points)),
    ),
    element("span", { class: "muted small fleet-errors" }, words.differences(parity)),
  );
}
