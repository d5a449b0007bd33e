// @ts-check
/** Numbers beside a world: frame rate, reaction, latency of the blocks and its parts, and the time that is left. */

import { element, replace, svg } from "../../dom.js";
import { texts } from "../../texts.js";

/** @typedef {import("./session.js").ChunkFacts} ChunkFacts */
/** @typedef {{block: number, total_s: number, parts: [string, number][]}} Block */

const RATE_MS = 2_000;
const REFRESH_MS = 500;
const BLOCKS = 40;
const BARS_HEIGHT = 72;
const PREVIOUS = "previous_";
const OTHER = "other";
const words = texts.world.meters;

export class Meters {
  constructor() {
    this.fps = 25;
    this.continues = true;
    /** @type {number[]} */
    this.drawn_ms = [];
    /** @type {Map<number, {frames: number, total_s: number}>} Blocks whose parts are not known yet. */
    this.made = new Map();
    /** @type {Block[]} */
    this.blocks = [];
    /** @type {number | null} */
    this.reaction_ms = null;
    /** @type {number | null} */
    this.left_s = null;
    this.dropped = 0;
    this.frames = 0;
    this.values = element("dl", { class: "meter-values" });
    this.bars = element("div", { class: "meter-bars" });
    this.legend = element("ul", { class: "legend small" });
    this.element = element(
      "section",
      { class: "card stack", "aria-labelledby": "world-meters" },
      element("h2", { id: "world-meters" }, words.title),
      this.values,
      element("h3", {}, words.latency),
      this.bars,
      this.legend,
    );
    this.timer = setInterval(() => this.#show(), REFRESH_MS);
    this.#show();
  }

  /** @param {{fps: number, continues: boolean}} config Facts from `video.start`. */
  begin({ fps, continues }) {
    this.fps = fps;
    this.continues = continues;
  }

  /** Count a frame that arrived. @param {ChunkFacts} facts */
  arrived(facts) {
    const { generation_chunk_index: index, latency } = facts;
    const block = this.made.get(index) ?? { frames: 0, total_s: 0 };
    this.made.set(index, { frames: block.frames + facts.num_frames, total_s: latency.generation_s });
    this.dropped += facts.dropped;
    const before = this.made.get(index - 1);
    if (before && hasParts(latency)) {
      this.made.delete(index - 1);
      this.#addBlock(index - 1, before.total_s, latency);
    }
    if (facts.frames_left !== undefined) this.left_s = facts.frames_left / this.fps;
  }

  /** Count a frame that is shown. @param {number | null} reaction_ms Time since the press that it answers to. */
  drawn(reaction_ms) {
    this.frames += 1;
    this.drawn_ms.push(performance.now());
    if (reaction_ms !== null) this.reaction_ms = reaction_ms;
  }

  close() {
    clearInterval(this.timer);
  }

  /** @param {number} block @param {number} total_s @param {Record<string, number>} latency */
  #addBlock(block, total_s, latency) {
    const parts = /** @type {[string, number][]} */ (
      Object.entries(latency)
        .filter(([name]) => name.startsWith(PREVIOUS))
        .map(([name, value]) => [name.slice(PREVIOUS.length).replace(/_s$/, ""), value])
    );
    const known_s = parts.reduce((sum, [, value]) => sum + value, 0);
    const whole_s = Math.max(total_s, known_s);
    this.blocks.push({ block, total_s: whole_s, parts: [...parts, [OTHER, whole_s - known_s]] });
    this.blocks.splice(0, this.blocks.length - BLOCKS);
  }

  #show() {
    const now_ms = performance.now();
    this.drawn_ms = this.drawn_ms.filter((time_ms) => now_ms - time_ms < RATE_MS);
    const rate = this.drawn_ms.length / (RATE_MS / 1000);
    const last = this.blocks.at(-1);
    const rows = /** @type {[string, string, string][]} */ ([
      ["rate", words.rate, this.frames ? words.perSecond(rate, this.fps) : "–"],
      ["reaction", words.reaction, this.reaction_ms === null ? "–" : words.seconds(this.reaction_ms / 1000)],
      ["block", words.block, last ? words.seconds(last.total_s) : "–"],
      [
        "left",
        words.left,
        this.continues ? words.noEnd : this.left_s === null ? "–" : words.clock(this.left_s),
      ],
      ["frames", words.frames, String(this.frames)],
      ["dropped", words.dropped, String(this.dropped)],
    ]);
    replace(
      this.values,
      rows.map(([name, label, value]) =>
        element(
          "div",
          {},
          element("dt", {}, label),
          element("dd", { class: "number", dataset: { meter: name } }, value),
        ),
      ),
    );
    this.#showBars();
  }

  #showBars() {
    const found = new Set(this.blocks.flatMap(({ parts }) => parts.map(([name]) => name)));
    // What no part explains comes last.
    const names = [...found].sort((a, b) => Number(a === OTHER) - Number(b === OTHER));
    const highest_s = Math.max(0.001, ...this.blocks.map(({ total_s }) => total_s));
    const bars = this.blocks.flatMap(({ parts }, index) => {
      let top = BARS_HEIGHT;
      return parts.map(([name, value]) => {
        const height = (value / highest_s) * BARS_HEIGHT;
        top -= height;
        return svg("rect", {
          x: index * 8 + (BLOCKS - this.blocks.length) * 8,
          y: top,
          width: 6,
          height,
          class: `bar-part ${partClass(names, name)}`,
        });
      });
    });
    const average = words.average(this.blocks.length, mean(this.blocks.map(({ total_s }) => total_s)));
    replace(
      this.bars,
      svg(
        "svg",
        {
          viewBox: `0 0 ${BLOCKS * 8} ${BARS_HEIGHT}`,
          preserveAspectRatio: "none",
          role: "img",
          "aria-label": this.blocks.length ? average : words.none,
        },
        bars,
      ),
      element("p", { class: "muted small" }, this.blocks.length ? average : words.none),
    );
    replace(
      this.legend,
      names.map((name) =>
        element(
          "li",
          {},
          element("span", { class: `part-dot ${partClass(names, name)}` }),
          words.part(name),
          element(
            "span",
            { class: "number muted" },
            words.seconds(mean(this.blocks.map((each) => partOf(each, name)))),
          ),
        ),
      ),
    );
  }
}

/** @param {Record<string, number>} latency */
function hasParts(latency) {
  return Object.keys(latency).some((name) => name.startsWith(PREVIOUS));
}

/** @param {string[]} names @param {string} name @returns {string} Class with the colour of a part. */
function partClass(names, name) {
  return name === OTHER ? "part-other" : `part-${names.indexOf(name) % 4}`;
}

/** @param {Block} block @param {string} name */
function partOf(block, name) {
  return block.parts.find(([each]) => each === name)?.[1] ?? 0;
}

/** @param {number[]} values */
function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0;
}
