// @ts-check
/** The view "listen": a microphone or a file goes in, and probabilities and detections of words come out. */

import { announce, element, icon, replace } from "../dom.js";
import { errorNote, sentence } from "../elements/error-note.js";
import { fileDrop } from "../elements/file-drop.js";
import { button, card, columns, routeView, table } from "../elements/parts.js";
import { texts } from "../texts.js";
import { Curve } from "./listen/curve.js";
import { Listener } from "./listen/listener.js";
import { canTrain, NewWord } from "./listen/new-word.js";
import { level_db } from "./listen/resample.js";
import { microphone, readSound } from "./listen/sources.js";

const SOUNDS = "audio/*,.ogg,.opus,.flac";
const QUIETEST_DB = -60;
const SHOWN_MS = 1_600;
const words = texts.listen;

export const view = routeView(
  "listen",
  words.label,
  "microphone",
  "/v1/listen",
  ({ api }) => new Listening(api),
);

class Listening {
  /** @param {import("../types.js").Context["api"]} api */
  constructor(api) {
    this.api = api;
    /** @type {Listener | null} */
    this.listener = null;
    /** @type {{close: () => void} | null} */
    this.source = null;
    /** @type {import("./listen/listener.js").Detection[]} */
    this.detections = [];
    this.soundUrl = "";
    this.timer = 0;
    this.curve = new Curve();
    this.button = button(null, "", () => this.#toggle(), "primary large");
    this.status = element("p", { class: "muted", role: "status" });
    this.meter = element(
      "div",
      {
        class: "listen-level",
        role: "meter",
        "aria-label": words.level,
        "aria-valuemin": QUIETEST_DB,
        "aria-valuemax": 0,
      },
      element("div", { class: "listen-level-fill" }),
    );
    this.heard = element("div", { class: "heard" });
    this.list = element("div", {});
    this.problem = element("div", { class: "slot" });
    this.adding = element("div", { class: "slot listen-adding" });
    /** @type {NewWord | null} */
    this.newWord = null;
    this.player = element("audio", {
      controls: true,
      hidden: true,
      class: "listen-player",
      "aria-label": words.player,
    });
    this.drop = fileDrop({
      label: words.file,
      hint: words.fileHint,
      accept: SOUNDS,
      onFile: (file) => file && this.#hearFile(file),
    });
    const about = element("p", { class: "muted" }, words.text);
    this.element = columns(
      words.label,
      "listen-layout",
      [
        card(words.title, about, this.button, this.meter, this.status),
        element("div", { class: "listen-file" }, card(words.file, this.drop.element, this.player)),
        this.problem,
        this.adding,
      ],
      [card(words.curve, this.curve.element), card(words.detections, this.heard, this.list)],
    );
    this.#showLevel(-Infinity);
    this.#showButton();
    this.#showDetections();
    this.#offerTraining();
  }

  close() {
    this.#end();
    this.newWord?.close();
    this.curve.close();
    this.drop.close();
    this.player.pause();
    clearTimeout(this.timer);
    if (this.soundUrl) URL.revokeObjectURL(this.soundUrl);
  }

  /** Show the card that adds a word, if the gateway lets callers train one. */
  async #offerTraining() {
    if (!(await canTrain(this.api).catch(() => false))) return;
    this.newWord = new NewWord(this.api, () => this.source && this.#toggle());
    replace(this.adding, this.newWord.element);
  }

  async #toggle() {
    if (this.source) {
      // The gateway answers to the last sound before the connection ends.
      this.#endSource();
      this.listener?.stop();
      this.#showButton();
      return;
    }
    this.#begin(true);
    if (!navigator.mediaDevices) {
      this.#failed(words.noMicrophone);
      return;
    }
    this.button.disabled = true;
    try {
      this.source = await microphone((samples) => {
        this.#showLevel(level_db(samples));
        this.listener?.hear(samples);
      });
    } catch (error) {
      console.warn(error);
      this.#failed(words.noMicrophone);
      return;
    } finally {
      this.button.disabled = false;
    }
    this.#connect(() => (this.status.textContent = words.listening));
    this.#showButton();
  }

  /** @param {File} file */
  async #hearFile(file) {
    this.#begin(false);
    this.status.textContent = words.reading;
    let samples;
    try {
      samples = await readSound(file);
    } catch {
      this.#failed(words.noSound(file.name));
      return;
    }
    this.soundUrl = URL.createObjectURL(file);
    this.player.src = this.soundUrl;
    this.player.hidden = false;
    const listener = this.#connect(() => {
      this.status.textContent = words.sending;
      listener.hearAll(samples).catch((error) => this.#failed(sentence(error)));
    });
  }

  /** @param {boolean} isLive */
  #begin(isLive) {
    this.#end();
    replace(this.problem);
    this.detections = [];
    this.curve.begin(isLive);
    this.#showDetections();
    replace(this.heard);
    this.player.pause();
    this.player.hidden = true;
    if (this.soundUrl) URL.revokeObjectURL(this.soundUrl);
    this.soundUrl = "";
    if (isLive) this.drop.set(null);
    this.status.textContent = words.connecting;
  }

  /** @param {() => void} onReady @returns {Listener} */
  #connect(onReady) {
    this.listener = new Listener(this.api, {
      onReady,
      onWindows: (windows) => this.curve.add(windows),
      onDetection: (detection) => this.#detected(detection),
      onQueue: (position, depth) => (this.status.textContent = words.inLine(position, depth)),
      onDone: (seconds) => this.#done(seconds),
      onError: (text) => this.#failed(text || words.broken),
    });
    return this.listener;
  }

  /** @param {import("./listen/listener.js").Detection} detection */
  #detected(detection) {
    this.detections.unshift(detection);
    this.curve.mark(detection);
    this.#showDetections();
    const text = words.heard(detection.word);
    announce(text);
    replace(this.heard, element("p", { class: "heard-word" }, icon("check"), text));
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => replace(this.heard), SHOWN_MS);
  }

  /** @param {number} seconds */
  #done(seconds) {
    this.#end();
    this.curve.end();
    this.status.textContent = words.done(seconds, this.detections.length);
    this.#showButton();
  }

  /** @param {string} text */
  #failed(text) {
    this.#end();
    this.status.textContent = "";
    replace(this.problem, errorNote(text));
    this.#showButton();
  }

  #end() {
    this.#endSource();
    this.listener?.close();
    this.listener = null;
  }

  #endSource() {
    this.source?.close();
    this.source = null;
    this.#showLevel(-Infinity);
  }

  #showButton() {
    const isOn = this.source !== null;
    this.button.classList.toggle("primary", !isOn);
    replace(this.button, icon(isOn ? "stop" : "microphone"), isOn ? words.stop : words.start);
  }

  /** @param {number} value_db */
  #showLevel(value_db) {
    const shown_db = Math.max(QUIETEST_DB, Math.min(0, value_db));
    this.meter.style.setProperty("--share", String(1 - shown_db / QUIETEST_DB));
    this.meter.setAttribute("aria-valuenow", String(Math.round(shown_db)));
  }

  #showDetections() {
    if (!this.detections.length) {
      replace(this.list, element("p", { class: "muted" }, words.noDetection));
      return;
    }
    const heads = [words.time, words.word, words.probability];
    const rows = this.detections.map(({ word, time_s, probability }) => [
      time_s.toFixed(1),
      element("td", { class: "strong" }, word),
      probability.toFixed(3),
    ]);
    replace(this.list, table("listen-detections", heads, rows, [0, 2]));
  }
}
