// @ts-check
/** What a world begins with: a picture, a seed and a rate, or a file in which a world was saved. */

import { element, icon } from "../../dom.js";
import { randomSeed } from "../../elements/controls.js";
import { limits } from "../../elements/error-note.js";
import { examplePicture, fileDrop } from "../../elements/file-drop.js";
import { button, iconButton, labelled } from "../../elements/parts.js";
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
  const example = examplePicture(world.fields.find((field) => field.type === "picture"));
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
  const start = button("play", words.start, null, "primary large");
  const restore = element("input", {
    type: "file",
    class: "visually-hidden",
    id: "world-file",
    tabIndex: -1,
    "aria-hidden": "true",
    accept: ".world",
    on: { change: () => (restore.files?.[0] && onRestore(restore.files[0]), (restore.value = "")) },
  });
  const roll = iconButton("dice", words.newSeed, () => (seed.value = String(randomSeed())));
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
    world.note && limits(world.note),
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
        labelled(words.seed, seed, element("div", { class: "row world-number" }, seed, roll)),
        labelled(words.fps, fps),
      ),
    ),
    world.can_save &&
      element(
        "div",
        { class: "stack tight world-restore" },
        element("h3", {}, words.restore),
        element("p", { class: "muted small" }, words.restoreText),
        restore,
        button("upload", words.restoreChoose, () => restore.click()),
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
    takePicture: (file) => (drop.set(file), show(drop.file() ?? example)),
    close: drop.close,
  };
}

/** @param {string} id @param {unknown} value @param {number} min @param {number} max */
function number(id, value, min, max) {
  return element("input", { id, type: "number", value: String(value), min, max, step: 1 });
}
