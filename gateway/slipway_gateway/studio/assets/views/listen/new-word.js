// @ts-check
/** A card that adds a word: it records the word and other sounds, and lets the server train and serve it. */

import { element, replace } from "../../dom.js";
import { errorNote } from "../../elements/error-note.js";
import { button, card, labelled } from "../../elements/parts.js";
import { progressBar } from "../../elements/progress-bar.js";
import { texts } from "../../texts.js";
import { RATE_HZ } from "./resample.js";
import { microphone } from "./sources.js";
import { wavFile } from "./wav.js";

const ROUTE = "/v1/models/trained";
const FEWEST = 8;
const LOOK_MS = 1_500;
/** Number and length of the recordings of each kind; the word is said in the middle of two seconds. */
const TAKES = { positive: { count: 10, seconds: 2 }, negative: { count: 12, seconds: 3 } };
const words = texts.listen.newWord;

/** @typedef {keyof typeof TAKES} Kind */

/**
 * Return true if the gateway lets callers train words.
 *
 * @param {import("../../types.js").Context["api"]} api
 */
export async function canTrain(api) {
  const { paths } = await api.get("/openapi.json");
  return `${ROUTE}/{word}` in paths;
}

export class NewWord {
  /**
   * @param {import("../../types.js").Context["api"]} api
   * @param {() => void} onRecord Function that is called before the microphone is used.
   */
  constructor(api, onRecord) {
    this.api = api;
    this.onRecord = onRecord;
    /** @type {Record<Kind, Blob[]>} */
    this.recordings = { positive: [], negative: [] };
    /** @type {{close: () => void} | null} */
    this.source = null;
    this.timer = 0;
    this.isTraining = false;
    this.name = element("input", {
      id: "new-word",
      type: "text",
      maxLength: 64,
      autocomplete: "off",
      spellcheck: false,
      placeholder: words.example,
      on: { input: () => this.#show() },
    });
    this.prompt = element("p", { class: "word-prompt", role: "status", hidden: true });
    this.bar = progressBar(words.recording);
    this.bar.element.hidden = true;
    this.problem = element("div", {});
    this.status = element("p", { class: "muted", role: "status" });
    this.rows = { positive: this.#row("positive"), negative: this.#row("negative") };
    this.train = button("check", words.train, () => this.#train(), "primary");
    this.element = card(
      words.title,
      element("p", { class: "muted" }, words.text),
      labelled(words.name, this.name),
      this.rows.positive.element,
      this.rows.negative.element,
      this.prompt,
      this.bar.element,
      this.train,
      this.status,
      this.problem,
    );
    this.#show();
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  /** @returns {string} Id of the word: what was typed, in lower case, with underscores for spaces. */
  #id() {
    return this.name.value.trim().toLowerCase().replaceAll(/\s+/g, "_");
  }

  /** @param {Kind} kind */
  #row(kind) {
    const count = element("span", { class: "number muted small" });
    const files = element("input", {
      type: "file",
      accept: ".wav,.flac,.ogg,.mp3",
      multiple: true,
      class: "visually-hidden",
      tabIndex: -1,
      "aria-label": words.files[kind],
      on: {
        change: () => {
          this.recordings[kind].push(...(files.files ?? []));
          files.value = "";
          this.#show();
        },
      },
    });
    const record = button("microphone", words.record[kind], () => this.#record(kind), "small");
    const choose = button("upload", texts.common.file.choose, () => files.click(), "small");
    const clear = button("trash", words.clear, () => ((this.recordings[kind] = []), this.#show()), "small");
    return {
      count,
      buttons: [record, choose, clear],
      clear,
      element: element(
        "div",
        { class: "stack tight", role: "group", "aria-label": words.kinds[kind] },
        element("div", { class: "row between" }, element("h3", {}, words.kinds[kind]), count),
        element("div", { class: "row" }, record, choose, clear, files),
      ),
    };
  }

  /** Record all takes of a kind, one after the other. @param {Kind} kind */
  async #record(kind) {
    this.onRecord();
    this.close();
    replace(this.problem);
    const { count, seconds } = TAKES[kind];
    /** @type {number[]} */
    let heard = [];
    let takes = 0;
    const tell = () => {
      this.prompt.textContent = words.say[kind](Math.min(takes + 1, count), count, this.name.value.trim());
      this.bar.set((takes + heard.length / (seconds * RATE_HZ)) / count);
    };
    try {
      this.source = await microphone((samples) => {
        if (takes === count) return;
        heard.push(...samples);
        if (heard.length >= seconds * RATE_HZ) {
          this.recordings[kind].push(wavFile(Float32Array.from(heard)));
          heard = [];
          takes += 1;
          if (takes === count) this.close();
        }
        tell();
        this.#show();
      });
    } catch (error) {
      console.warn(error);
      replace(this.problem, errorNote(texts.listen.noMicrophone));
    }
    tell();
    this.#show();
  }

  async #train() {
    this.close();
    replace(this.problem);
    const form = new FormData();
    for (const kind of /** @type {Kind[]} */ (["positive", "negative"])) {
      this.recordings[kind].forEach((blob, index) =>
        form.append(kind, blob, blob instanceof File ? blob.name : `${index}.wav`),
      );
    }
    this.isTraining = true;
    this.#show();
    const path = `${ROUTE}/${encodeURIComponent(this.#id())}`;
    try {
      await this.api.form(path, form);
      this.#follow(path);
    } catch (error) {
      this.#ended(error);
    }
  }

  /** Look at the training until it ends. @param {string} path */
  async #follow(path) {
    try {
      const { state, error } = await this.api.get(`${path}/training`);
      if (state === "queued" || state === "running") {
        this.status.textContent = words.states[/** @type {"queued" | "running"} */ (state)];
        this.timer = window.setTimeout(() => this.#follow(path), LOOK_MS);
        return;
      }
      this.#ended(error);
    } catch (error) {
      this.#ended(error);
    }
  }

  /** @param {unknown} error Reason of a failure; null if the word is trained. */
  #ended(error) {
    this.isTraining = false;
    this.status.textContent = error === null ? words.ready(this.name.value.trim()) : "";
    if (error !== null) replace(this.problem, errorNote(error));
    this.#show();
  }

  #show() {
    const isRecording = this.source !== null;
    const isBusy = isRecording || this.isTraining;
    for (const kind of /** @type {Kind[]} */ (["positive", "negative"])) {
      const row = this.rows[kind];
      const { length } = this.recordings[kind];
      row.count.textContent = words.count(length, FEWEST);
      row.buttons.forEach((each) => (each.disabled = isBusy));
      row.clear.hidden = length === 0;
    }
    this.prompt.hidden = !isRecording;
    this.bar.element.hidden = !isBusy;
    if (this.isTraining) this.bar.set(null);
    const hasEnough = Object.values(this.recordings).every(({ length }) => length >= FEWEST);
    this.train.disabled = isBusy || !hasEnough || !/^[a-z0-9][a-z0-9_-]*$/.test(this.#id());
  }
}
