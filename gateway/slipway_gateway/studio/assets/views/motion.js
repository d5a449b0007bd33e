// @ts-check
/** The view "motion": a recording of an inertial sensor becomes two paths, before and after the correction. */

import { element, icon, replace } from "../dom.js";
import { errorNote } from "../elements/error-note.js";
import { fileDrop } from "../elements/file-drop.js";
import { button, card, columns, labelled, routeView } from "../elements/parts.js";
import { texts } from "../texts.js";
import { errorTable } from "./motion/error-table.js";
import { Trajectories } from "./motion/trajectories.js";

const ROUTE = "/v1/imu";
const EXAMPLE_FILES = /** @type {const} */ ({ signals: "imu.csv", ground_truth: "ground_truth.csv" });
/** The usual length of the paths: at 10 to 15 s a person sees what the correction is good for. */
const USUAL_S = 12;
const LONGEST_S = 60;
const SETTLED_MS = 350;
/** Screens on which the result is below the form, as in motion.css. */
const NARROW = "(max-width: 900px)";
const words = texts.motion;

export const view = routeView("motion", words.label, "motion", ROUTE, ({ api }) => new MotionView(api));

class MotionView {
  /** @param {import("../types.js").Context["api"]} api */
  constructor(api) {
    this.api = api;
    this.timer = 0;
    this.ending = new AbortController();
    /** @type {Trajectories | null} */
    this.shown = null;
    this.signals = fileDrop({
      label: words.signals,
      hint: words.signalsHint,
      accept: ".csv,.npz,.json",
      onFile: (file) => this.#chosen(file),
    });
    this.truth = fileDrop({
      label: words.truth,
      hint: words.truthHint,
      accept: ".csv",
      onFile: () => this.signals.file() && this.#run(),
    });
    this.example = button("play", words.example, () => this.#tryExample(), "primary large");
    this.start = slider("motion-start", words.start, 0, 1, 0.5, 0, () => this.#later());
    this.length = slider("motion-length", words.length, 2, LONGEST_S, 1, USUAL_S, () => this.#later());
    this.part = element(
      "div",
      { class: "stack", hidden: true },
      element("h3", {}, words.part),
      this.start.element,
      this.length.element,
    );
    this.rate = unit("motion-rate", words.rate, ["rad/s", "deg/s"], () => this.#later());
    this.acceleration = unit("motion-acceleration", words.acceleration, ["m/s^2", "g"], () => this.#later());
    this.status = element("p", { class: "muted", role: "status" });
    this.problem = element("div", { class: "slot" });
    this.result = element("div", { class: "stack" }, nothing());
    this.element = columns(
      words.label,
      "motion-layout",
      [
        card(
          words.title,
          element("p", { class: "muted" }, words.text),
          this.example,
          this.status,
          element("h3", {}, words.signals),
          this.signals.element,
          element("h3", {}, words.truth),
          this.truth.element,
          element(
            "details",
            {},
            element("summary", {}, icon("chevron"), words.units),
            element("div", { class: "motion-units" }, this.rate.element, this.acceleration.element),
          ),
          this.part,
        ),
        this.problem,
      ],
      [this.result],
    );
  }

  close() {
    clearTimeout(this.timer);
    this.ending.abort();
    this.shown?.close();
    this.signals.close();
    this.truth.close();
  }

  async #tryExample() {
    this.status.textContent = words.loading;
    try {
      const [signals, truth] = await Promise.all(
        Object.entries(EXAMPLE_FILES).map(async ([part, name]) => {
          const blob = await this.api.blob(`/v1/imu/example?part=${part}`);
          return new File([blob], name, { type: "text/csv" });
        }),
      );
      this.signals.set(signals);
      this.truth.set(truth);
      await this.#run();
    } catch (error) {
      this.#failed(error);
    }
  }

  /** @param {File | null} file */
  #chosen(file) {
    // The ground truth belonged to the recording before.
    this.truth.set(null);
    if (file) this.#run();
    else this.#clear();
  }

  #later() {
    clearTimeout(this.timer);
    if (this.signals.file()) this.timer = window.setTimeout(() => this.#run(), SETTLED_MS);
  }

  async #run() {
    const signals = this.signals.file();
    if (!signals) return;
    this.ending.abort();
    this.ending = new AbortController();
    const { signal } = this.ending;
    const form = new FormData();
    form.append("file", signals);
    const truth = this.truth.file();
    if (truth) form.append("ground_truth", truth);
    const query = new URLSearchParams({ start_s: this.start.value(), seconds: this.length.value() });
    if (this.rate.value()) query.set("rate_unit", this.rate.value());
    if (this.acceleration.value()) query.set("acceleration_unit", this.acceleration.value());
    this.status.textContent = words.correcting;
    replace(this.problem);
    try {
      this.#show(await this.api.form(`${ROUTE}/trajectory?${query}`, form, { signal }));
    } catch (error) {
      if (!signal.aborted) this.#failed(error);
    }
  }

  /** @param {import("./motion/trajectories.js").Answer} answer */
  #show(answer) {
    this.shown?.close();
    this.shown = new Trajectories(answer);
    this.start.limit(Math.max(0, Math.floor(answer.recording_s) - 2));
    this.length.limit(Math.max(3, Math.min(LONGEST_S, Math.ceil(answer.recording_s))));
    this.part.hidden = false;
    this.example.classList.remove("primary", "large");
    const { raw, corrected } = answer.errors ?? {};
    this.status.textContent =
      raw && corrected ? words.better(raw.ate_m, corrected.ate_m) : words.corrected(answer.frames);
    replace(this.result, this.shown.element, errorTable(answer));
    if (matchMedia(NARROW).matches) this.result.scrollIntoView({ block: "start" });
  }

  /** @param {unknown} error */
  #failed(error) {
    this.#clear();
    replace(this.problem, errorNote(error));
  }

  #clear() {
    this.shown?.close();
    this.shown = null;
    this.status.textContent = "";
    this.part.hidden = true;
    replace(this.problem);
    replace(this.result, nothing());
  }
}

/** @returns {HTMLElement} Words in the place of the plots. */
function nothing() {
  return element("div", { class: "card empty" }, icon("motion"), element("p", {}, words.nothing));
}

/**
 * @param {string} id
 * @param {string} label
 * @param {number} min
 * @param {number} max
 * @param {number} step
 * @param {number} first
 * @param {() => void} onChange
 */
function slider(id, label, min, max, step, first, onChange) {
  const output = element("output", { class: "number muted", for: id });
  const show = () => (output.textContent = words.seconds(Number(input.value)));
  const input = element("input", {
    id,
    type: "range",
    min,
    max,
    step,
    on: { input: () => (show(), onChange()) },
  });
  input.value = String(first);
  show();
  return {
    element: element(
      "div",
      { class: "stack tight" },
      element(
        "div",
        { class: "row between" },
        element("label", { class: "field-label", for: id }, label),
        output,
      ),
      input,
    ),
    value: () => input.value,
    limit: (/** @type {number} */ largest) => {
      input.max = String(largest);
      input.disabled = largest <= min;
      show();
    },
  };
}

/** @param {string} id @param {string} label @param {string[]} units @param {() => void} onChange */
function unit(id, label, units, onChange) {
  const select = element(
    "select",
    { id, on: { change: onChange } },
    element("option", { value: "" }, words.fromFile),
    units.map((name) => element("option", { value: name }, name)),
  );
  return { element: labelled(label, select), value: () => select.value };
}
