// @ts-check
/** The view "fleet": what an operator looks at first, read again every two seconds while it is shown. */

import { ApiError } from "../api.js";
import { announce, element, replace } from "../dom.js";
import { errorNote, note } from "../elements/error-note.js";
import { texts } from "../texts.js";
import { failureList } from "./fleet/failures.js";
import { modelTables } from "./fleet/models.js";
import { say } from "./fleet/rows.js";
import { serverList } from "./fleet/servers.js";

/** @typedef {import("../types.js").Fleet} Fleet */

const LOOK_MS = 2000;
const RETRY_MS = 5000;
const words = texts.fleet;

/** @type {import("../types.js").View} */
export const view = {
  id: "fleet",
  label: words.label,
  icon: "fleet",
  always: true,
  models: (models) => models,
  build,
};

/** @param {import("../types.js").Context} context @returns {import("../types.js").BuiltView} */
function build({ api }) {
  const summary = summaryTiles();
  const servers = serverList();
  const models = modelTables();
  const failures = failureList();
  const problem = element("div", {});
  const content = element(
    "div",
    { class: "view", hidden: true },
    summary.element,
    element(
      "section",
      { class: "stack", "aria-label": words.servers.title },
      element("h2", {}, words.servers.title),
      servers.element,
    ),
    failures.element,
    models.element,
  );
  const loading = element("p", { class: "empty" }, texts.common.loading);
  const made = element(
    "section",
    { class: "view fleet" },
    element(
      "div",
      { class: "stack tight" },
      element("h1", {}, words.title),
      element("p", { class: "muted" }, words.note),
    ),
    problem,
    loading,
    content,
  );
  const end = new AbortController();
  let timer = 0;
  let said = "";

  /** @param {Fleet} fleet */
  function show(fleet) {
    loading.hidden = true;
    content.hidden = false;
    replace(problem);
    summary.show(fleet);
    servers.show(fleet.servers);
    failures.show(fleet.failures);
    models.show(fleet.models);
    const state = words.spoken(
      fleet.servers.filter((each) => each.state === "ready").length,
      fleet.servers.length,
    );
    // People who use a screen reader hear a change of the servers, and nothing every two seconds.
    if (said && said !== state) announce(state);
    said = state;
  }

  /** @param {unknown} error @returns {boolean} True if another look may help. */
  function showError(error) {
    const refused = error instanceof ApiError && error.code === "admin_required";
    loading.hidden = true;
    content.hidden ||= refused;
    replace(problem, refused ? note(words.adminNeeded, "waiting") : errorNote(error));
    return !(error instanceof ApiError && error.status >= 400 && error.status < 500);
  }

  /** @param {number} pause_ms */
  function later(pause_ms) {
    if (!end.signal.aborted) timer = setTimeout(look, pause_ms);
  }

  async function look() {
    let pause_ms = LOOK_MS;
    try {
      if (!document.hidden) show(await api.get("/v1/fleet", { signal: end.signal }));
    } catch (error) {
      if (end.signal.aborted || !showError(error)) return;
      pause_ms = RETRY_MS;
    }
    later(pause_ms);
  }

  look();
  return {
    element: made,
    close() {
      end.abort();
      clearTimeout(timer);
    },
  };
}

/** @returns {{element: HTMLElement, show: (fleet: Fleet) => void}} */
function summaryTiles() {
  const names = /** @type {(keyof typeof words.summary)[]} */ (Object.keys(words.summary));
  const values = names.map(() => element("dd", { class: "number" }));
  const tiles = names.map((name, index) =>
    element(
      "div",
      { class: "card fleet-tile" },
      element("dt", { class: "muted small" }, words.summary[name]),
      values[index],
    ),
  );
  return {
    element: element("dl", { class: "fleet-tiles" }, tiles),
    show({ servers, models, failures }) {
      const queues = models.flatMap((model) => (model.queue ? [model.queue] : []));
      const sessions = models.flatMap((model) => (model.sessions ? [model.sessions] : []));
      const ready = servers.filter((server) => server.state === "ready").length;
      const open = total(sessions.map((each) => each.open));
      const limit = total(sessions.map((each) => each.limit ?? 0));
      /** @type {Record<keyof typeof words.summary, [string, boolean]>} */
      const shown = {
        servers: [words.of(ready, servers.length), ready < servers.length],
        waiting: [String(total(queues.map((queue) => queue.waiting))), false],
        running: [String(total(queues.map((queue) => queue.running))), false],
        sessions: [limit ? words.of(open, limit) : String(open), false],
        failures: [String(failures.length), failures.length > 0],
      };
      names.forEach((name, index) => {
        say(values[index], shown[name][0]);
        values[index].classList.toggle("fleet-bad", shown[name][1]);
      });
    },
  };
}

/** @param {number[]} numbers */
function total(numbers) {
  return numbers.reduce((sum, number) => sum + number, 0);
}
