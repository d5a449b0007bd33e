// @ts-check
/** The page: it reads the models, shows a tab for each view that has one, and the view of the address. */

import { api, ApiError, onKeyNeeded } from "./api.js";
import { announce, element, icon, replace } from "./dom.js";
import { sentence } from "./elements/error-note.js";
import { askForKey } from "./elements/key-dialog.js";
import { button } from "./elements/parts.js";
import { keepSetting, setting } from "./settings.js";
import { texts } from "./texts.js";
import { view as fleet } from "./views/fleet.js";
import { view as listen } from "./views/listen.js";
import { view as motion } from "./views/motion.js";
import { view as video } from "./views/video.js";
import { view as world } from "./views/world.js";

/** @typedef {import("./types.js").Model} Model */
/** @typedef {import("./types.js").View} View */

/** @type {View[]} */
const VIEWS = [video, world, listen, motion, fleet];
const LOOK_MS = 10_000;
const FIRST_LOOK_MS = 2_000;
const LAST_VIEW = "view";

const tabs = /** @type {HTMLElement} */ (document.getElementById("tabs"));
const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const state = /** @type {HTMLElement} */ (document.getElementById("server-state"));

/** @type {Model[]} */
let models = [];
let known = "";
/** @type {{view: View, built: import("./types.js").BuiltView} | null} */
let shown = null;
let timer = 0;

/** Add the views of other distributions, which stand before the fleet. */
async function addViews() {
  const { views } = await api.get("/studio/views.json");
  for (const path of views) {
    try {
      VIEWS.splice(-1, 0, (await import(path)).view);
    } catch (error) {
      console.error(path, error);
    }
  }
}

/** @returns {View[]} Views that can show something now. */
function shownViews() {
  return VIEWS.filter((each) => each.always || each.models(models).length > 0);
}

/** @param {View | undefined} current */
function showTabs(current) {
  const links = shownViews().map((each) =>
    element(
      "a",
      { class: "tab", href: `#/${each.id}`, "aria-current": each === current ? "page" : null },
      icon(each.icon),
      element("span", {}, each.label),
    ),
  );
  replace(tabs, links);
}

/** Show the view of the address, or the last one, or the first. */
function show() {
  const views = shownViews();
  const wanted = location.hash.replace(/^#\//, "") || setting(LAST_VIEW, "");
  const view = views.find((each) => each.id === wanted) ?? views[0];
  showTabs(view);
  if (shown && shown.view === view) return;
  shown?.built.close();
  shown = null;
  if (!view) {
    replace(main, noModels());
    return;
  }
  const built = view.build({
    api,
    get models() {
      return models;
    },
    texts,
    go: (hash) => (location.hash = hash),
  });
  shown = { view, built };
  replace(main, built.element);
  // A view begins at its top, wherever the person was in the one before.
  scrollTo({ top: 0, behavior: "instant" });
  keepSetting(LAST_VIEW, view.id);
  document.title = `${view.label} – ${texts.common.title}`;
  announce(view.label);
}

/** @returns {HTMLElement} Words for a gateway without a model. */
function noModels() {
  const { title, text, known: later } = texts.common.noModels;
  return element(
    "section",
    { class: "empty" },
    icon("clock"),
    element("h1", {}, title),
    element("p", {}, text),
    element("p", { class: "muted" }, later),
  );
}

/** @returns {HTMLElement} Words for a user who has closed the question for a key. */
function keyMissing() {
  const { title, enter } = texts.common.key;
  return element(
    "section",
    { class: "empty" },
    icon("key"),
    element("h1", {}, title),
    button(null, enter, look, "primary"),
  );
}

/** @param {string} text @param {"good" | "waiting" | "bad"} kind */
function showState(text, kind) {
  replace(state, element("span", { class: `dot ${kind}` }), element("span", { class: "state-text" }, text));
  state.title = text;
}

/** Look again after a while, once. */
function lookLater() {
  clearTimeout(timer);
  const pause_ms = models.some((model) => model.ready) ? LOOK_MS : FIRST_LOOK_MS;
  if (!document.hidden) timer = setTimeout(look, pause_ms);
}

/** Read the models, and again after a while. */
async function look() {
  clearTimeout(timer);
  try {
    const answer = await api.get("/v1/models");
    models = answer.data;
    const ready = models.filter((model) => model.ready).length;
    showState(
      texts.common.models(ready, models.length),
      ready === models.length && ready ? "good" : "waiting",
    );
    const text = JSON.stringify(models);
    if (text !== known) {
      known = text;
      show();
      shown?.built.update?.(models);
    }
  } catch (error) {
    showState(texts.common.offline, "bad");
    if (error instanceof ApiError && error.status === 401) {
      replace(main, keyMissing());
      return;
    }
    if (!known) replace(main, element("p", { class: "empty" }, sentence(error)));
  }
  lookLater();
}

document.querySelector(".skip-link")?.addEventListener("click", (event) => {
  // The address names the view, so the link must not change it.
  event.preventDefault();
  main.focus();
});
onKeyNeeded(askForKey);
addEventListener("hashchange", show);
// A page that the browser has kept comes back without its views, which were closed.
addEventListener("pageshow", (event) => event.persisted && location.reload());
addEventListener("pagehide", () => shown?.built.close());
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : look()));
// Without its added views the page shows its own.
addViews()
  .catch(() => undefined)
  .finally(look);
