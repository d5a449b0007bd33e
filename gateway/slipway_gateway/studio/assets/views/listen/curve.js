// @ts-check
/** Probabilities of the words over time: one line for each word, with its threshold and its detections. */

import { plot } from "../../elements/plot.js";
import { texts } from "../../texts.js";

/** @typedef {import("./listener.js").Windows} Windows */
/** @typedef {import("./listener.js").Detection} Detection */

/** Length of what is shown while a microphone is heard, in seconds. */
const LIVE_S = 20;
const MOST_POINTS = 7_200;
const words = texts.listen;

export class Curve {
  constructor() {
    /** @type {Map<string, {points: [number, number][], threshold: number, detected: Set<number>}>} */
    this.lines = new Map();
    this.isLive = true;
    this.end_s = 0;
    this.plot = plot({
      title: words.curve,
      xLabel: words.time,
      yLabel: words.probability,
      yRange: [0, 1],
      height: 320,
    });
    this.element = this.plot.element;
    this.request = 0;
    this.#draw();
  }

  /** Begin anew. @param {boolean} isLive True to show the last seconds only. */
  begin(isLive) {
    this.isLive = isLive;
    this.lines.clear();
    this.end_s = 0;
    this.#later();
  }

  /** @param {Windows} windows */
  add({ end_s, words: names, probability, threshold }) {
    this.end_s = end_s;
    names.forEach((name, index) => {
      const line = this.lines.get(name) ?? { points: [], threshold: 0, detected: new Set() };
      this.lines.set(name, line);
      line.points.push([end_s, probability[index]]);
      line.threshold = threshold[index];
      if (line.points.length > MOST_POINTS) line.points.shift();
    });
    this.#later();
  }

  /** @param {Detection} detection */
  mark({ word, time_s }) {
    this.lines.get(word)?.detected.add(time_s);
    this.#later();
  }

  /** Show everything that was heard. */
  end() {
    this.isLive = false;
    this.#later();
  }

  close() {
    cancelAnimationFrame(this.request);
  }

  /** Draw once for all changes before the next picture of the screen. */
  #later() {
    cancelAnimationFrame(this.request);
    this.request = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    const first_s = this.isLive ? Math.max(0, this.end_s - LIVE_S) : 0;
    const last_s = Math.max(this.isLive ? LIVE_S : 2, this.end_s);
    const series = [...this.lines].map(([name, { points, threshold, detected }]) => {
      const shown = points.filter(([time_s]) => time_s >= first_s);
      return {
        name: words.line(name, threshold),
        points: shown,
        threshold,
        markers: shown.flatMap(([time_s], index) => (detected.has(time_s) ? [index] : [])),
      };
    });
    this.plot.draw(series, { xRange: [first_s, last_s], table: !this.isLive && series.length > 0 });
  }
}
