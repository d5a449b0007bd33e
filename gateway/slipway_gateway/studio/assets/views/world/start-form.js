// @ts-check
/** What a world begins with: a picture, a seed and a rate, or a file in which a world was saved. */

import { element, icon } from "../../dom.js";
import { fileDrop } from "../../elements/file-drop.js";
import { texts } from "../../texts.js";

const PICTURES = "image/png,image/jpeg,image/webp";
const LARGEST_SEED = 2 ** 31;
const words = texts.world.start;

/** @typedef {import("../../types.js").WorldModel} WorldModel */
/** @typedef {{picture: File | null, seed: number, fps: number}} Choice */

/**
 * Make the form.
 *
 * @param {WorldModel} world Description of the model.
 * @param {{onPicture: (file: File | null) => void, onStart: () => void, onRestore: (file: File) => void}} handlers
 * @returns {{element: HTMLElement, choice: () => Choice, takePicture: (file: File) => void, close: () => void}}
 */
export function startForm(world, { onPicture, onStart, onRestore }) {
  const fields = new Map(world.fields.map((field) => [field.name, field]));
  const example = exampleOf(world);
  let isExample = example !== null;
  const drop = fileDrop({
    label: words.picture,
    hint: words.pictureHint,
    accept: PICTURES,
    camera: true,
    paste: true,
    onFile: (file) => show(file ?? example),
  });
  const seed = number("world-seed", fields.get("seed")?.default ?? 0, 0, LARGEST_SEED);
  const fps = number("world-fps", Number(fields.get("fps")?.default) || 25, 1, 240);
  const start = element(
    "button",
    { class: "button primary large", type: "submit" },
    icon("play"),
    words.start,
  );
  const restore = element("input", {
    type: "file",
    class: "visually-hidden",
    id: "world-file",
    tabIndex: -1,
    "aria-hidden": "true",
    accept: ".world",
    on: { change: () => (restore.files?.[0] && onRestore(restore.files[0]), (restore.value = "")) },
  });
  const about = element("p", { class: "muted small" });

  /** @param {File | null} file */
  function show(file) {
    isExample = file !== null && file === example;
    about.textContent = isExample ? words.example : "";
    about.hidden = !isExample;
    start.disabled = file === null;
    onPicture(file);
  }

  const form = element(
    "form",
    { class: "card stack", on: { submit: (event) => (event.preventDefault(), onStart()) } },
    element("h2", {}, words.title),
    element("p", { class: "muted" }, words.text),
    start,
    element("h3", {}, words.picture),
    about,
    drop.element,
    element(
      "details",
      { class: "stack" },
      element("summary", {}, icon("chevron"), texts.common.more),
      element(
        "div",
        { class: "world-numbers" },
        labelled(words.seed, seed, randomSeed(seed)),
        labelled(words.fps, fps, null),
      ),
    ),
    world.can_save &&
      element(
        "div",
        { class: "stack tight world-restore" },
        element("h3", {}, words.restore),
        element("p", { class: "muted small" }, words.restoreText),
        restore,
        element(
          "button",
          { class: "button", type: "button", on: { click: () => restore.click() } },
          icon("upload"),
          words.restoreChoose,
        ),
      ),
  );
  show(example);
  return {
    element: form,
    choice: () => ({
      picture: drop.file() ?? example,
      seed: Number(seed.value) || 0,
      fps: Math.round(Number(fps.value)) || 25,
    }),
    takePicture: (file) => (drop.set(file), show(file)),
    close: drop.close,
  };
}

/** @param {WorldModel} world @returns {File | null} The picture that comes with the checkpoint. */
function exampleOf(world) {
  const text = world.fields.find((field) => field.type === "picture")?.example;
  if (!text) return null;
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new File([bytes], "example.png", { type: "image/png" });
}

/** @param {string} id @param {unknown} value @param {number} min @param {number} max */
function number(id, value, min, max) {
  return element("input", { id, type: "number", value: String(value), min, max, step: 1 });
}

/** @param {HTMLInputElement} seed */
function randomSeed(seed) {
  return element(
    "button",
    {
      class: "button only-icon",
      type: "button",
      "aria-label": words.newSeed,
      title: words.newSeed,
      on: { click: () => (seed.value = String(Math.floor(Math.random() * LARGEST_SEED))) },
    },
    icon("dice"),
  );
}

/** @param {string} label @param {HTMLInputElement} input @param {HTMLElement | null} more */
function labelled(label, input, more) {
  return element(
    "div",
    { class: "stack tight" },
    element("label", { class: "field-label", for: input.id }, label),
    element("div", { class: "row world-number" }, input, more),
  );
}
