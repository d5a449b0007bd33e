// @ts-check
/** Two plots of trajectories: the paths, which can be drawn as the sensor moved, and their distance over time. */

import { element, icon, replace } from "../../dom.js";
import { button, card } from "../../elements/parts.js";
import { plot } from "../../elements/plot.js";
import { tabs } from "../../elements/tabs.js";
import { texts } from "../../texts.js";

/** @typedef {[number, number, number]} Point */
/** @typedef {import("../../types.js").MotionAnswer} Answer */
/** @typedef {{ate_m: number, aoe_deg: number, rte_m: number | null, roe_deg: number | null}} Errors */

const words = texts.motion;
/** The axes of each view: horizontal, vertical. */
const VIEWS = /** @type {const} */ ({ above: [0, 1], side: [0, 2] });
const COLORS = { truth: "var(--plot-3)", raw: "var(--plot-2)", corrected: "var(--plot-1)" };
/** Longest time for which the paths are drawn; a longer motion is drawn faster than it was. */
const LONGEST_MS = 6_000;

export class Trajectories {
  /** @param {Answer} answer */
  constructor(answer) {
    this.answer = answer;
    /** @type {keyof typeof VIEWS} */
    this.side = "above";
    this.request = 0;
    this.paths = plot({
      title: words.paths,
      xLabel: "x in m",
      yLabel: "y in m",
      sameScale: true,
      height: 460,
    });
    this.distances = plot({
      title: answer.truth ? words.distance : words.fromStart,
      xLabel: words.time,
      yLabel: words.metres,
      height: 240,
    });
    const choice = tabs(
      words.side,
      [
        { value: "above", label: words.above },
        { value: "side", label: words.fromSide },
      ],
      this.side,
      (side) => {
        this.side = /** @type {keyof typeof VIEWS} */ (side);
        this.#stop();
        this.#drawPaths(answer.time_s.length);
      },
    );
    this.play = button(null, "", () => this.#toggle(), "small");
    this.element = element(
      "div",
      { class: "stack" },
      element(
        "div",
        { class: "card stack" },
        element(
          "div",
          { class: "row between" },
          element("h2", {}, words.paths),
          element("div", { class: "row" }, choice.element, this.play),
        ),
        this.paths.element,
      ),
      card(answer.truth ? words.distance : words.fromStart, this.distances.element),
    );
    this.#drawPaths(answer.time_s.length);
    this.#drawDistances();
    this.#showButton(false);
  }

  close() {
    cancelAnimationFrame(this.request);
  }

  #toggle() {
    if (this.request) {
      this.#stop();
      this.#drawPaths(this.answer.time_s.length);
      return;
    }
    const { time_s } = this.answer;
    const length_s = time_s.at(-1) ?? 0;
    const speed = Math.max(1, (1000 * length_s) / LONGEST_MS);
    const begin_ms = performance.now();
    const step = (/** @type {number} */ now_ms) => {
      const passed_s = (speed * Math.max(0, now_ms - begin_ms)) / 1000;
      const count = time_s.findIndex((time) => time > passed_s);
      this.#drawPaths(count < 0 ? time_s.length : Math.max(1, count));
      if (count < 0) this.#stop();
      else this.request = requestAnimationFrame(step);
    };
    this.request = requestAnimationFrame(step);
    this.#showButton(true);
  }

  #stop() {
    cancelAnimationFrame(this.request);
    this.request = 0;
    this.#showButton(false);
  }

  /** @param {boolean} isPlaying */
  #showButton(isPlaying) {
    replace(this.play, icon(isPlaying ? "stop" : "play"), isPlaying ? words.stop : words.play);
  }

  /** @param {number} count Number of points that are shown. */
  #drawPaths(count) {
    const [across, along] = VIEWS[this.side];
    const whole = this.#lines().flatMap(([, points]) => points);
    const series = this.#lines().map(([name, points]) => ({
      name: words.names[name],
      color: COLORS[name],
      dashed: name === "truth",
      points: points
        .slice(0, count)
        .map((point) => /** @type {[number, number]} */ ([point[across], point[along]])),
      markers: [count - 1],
    }));
    this.paths.draw(series, {
      yLabel: this.side === "above" ? "y in m" : "z in m",
      xRange: rangeOf(whole.map((point) => point[across])),
      yRange: rangeOf(whole.map((point) => point[along])),
      table: count === this.answer.time_s.length,
    });
  }

  #drawDistances() {
    const { truth, raw, time_s } = this.answer;
    const names = /** @type {const} */ (["raw", "corrected"]);
    const series = names.map((name) => ({
      name: words.names[name],
      color: COLORS[name],
      points: this.answer[name].map(
        (point, index) =>
          /** @type {[number, number]} */ ([time_s[index], distance(point, truth ? truth[index] : raw[0])]),
      ),
    }));
    this.distances.draw(series);
  }

  /** @returns {["truth" | "raw" | "corrected", Point[]][]} */
  #lines() {
    const { truth, raw, corrected } = this.answer;
    return [
      ["raw", raw],
      ["corrected", corrected],
      ...(truth ? [/** @type {["truth", Point[]]} */ (["truth", truth])] : []),
    ];
  }
}

/** @param {Point} a @param {Point} b */
function distance(a, b) {
  return Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

/** @param {number[]} values @returns {[number, number]} */
function rangeOf(values) {
  const low = values.reduce((a, b) => Math.min(a, b), Infinity);
  const high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const room = 0.06 * (high - low || 1);
  return [low - room, high + room];
}
