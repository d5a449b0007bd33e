// @ts-check
/**
 * A form for the fields of a model, made from the gateway's description of the model. It knows no model: what
 * every video API calls prompt, picture, size, length, steps and seed comes first, and so do required fields.
 * The other fields are folded.
 */

import { ApiError } from "../api.js";
import { element, icon } from "../dom.js";
import { keepSetting, setting } from "../settings.js";
import { texts } from "../texts.js";
import { control, sizeControl } from "./controls.js";

/** @typedef {import("../types.js").FieldDescription} FieldDescription */

/** @typedef {import("../types.js").ModelForm} ModelForm */

const IMPORTANT = ["prompt", "input_reference", "seconds", "frames", "steps", "seed"];
const SIDES = ["width", "height"];
const FOLDED = "more-fields";

/**
 * Make a form.
 * @param {FieldDescription[]} fields
 * @param {{hidden?: string[]}} [options] `hidden` names fields that are left out.
 * @returns {ModelForm}
 */
export function modelForm(fields, { hidden = [] } = {}) {
  const shown = fields.filter((field) => !hidden.includes(field.name));
  const [width, height] = SIDES.map((side) => shown.find((field) => field.name === side));
  const single = shown.filter((field) => !(width && height && SIDES.includes(field.name)));
  const important = [...single].filter(isImportant).sort((a, b) => place(a) - place(b));
  const first = important.map((field) => control(field, { note: !IMPORTANT.includes(field.name) }));
  const size = width && height ? sizeControl(width, height) : null;
  const wide = first.filter((each) => each?.element.classList.contains("wide"));
  const narrow = first.filter((each) => !wide.includes(each));
  const rest = single.filter((field) => !isImportant(field)).map((field) => control(field, { note: true }));
  const controls = [...wide, size, ...narrow, ...rest].filter((each) => each !== null);
  const more = element(
    "details",
    { class: "more", open: setting(FOLDED, false), on: { toggle: () => keepSetting(FOLDED, more.open) } },
    element("summary", {}, icon("chevron"), texts.common.more),
    element(
      "div",
      { class: "field-grid" },
      rest.filter((each) => each !== null).map((each) => each.element),
    ),
  );
  const whole = element(
    "div",
    { class: "stack" },
    wide.map((each) => each?.element),
    element(
      "div",
      { class: "field-grid" },
      size?.element,
      narrow.map((each) => each?.element),
    ),
    rest.length ? more : null,
  );

  const byName = Object.fromEntries(controls.flatMap((each) => each.names.map((name) => [name, each])));
  showLength(byName.frames, byName.fps);

  /** @param {import("./controls.js").Control} each @param {string} text */
  function point(each, text) {
    each.show(text);
    if (more.contains(each.element)) more.open = true;
  }

  return {
    element: whole,
    values: () => Object.assign({}, ...controls.map((each) => each.values())),
    set: (values) => controls.forEach((each) => each.set(values)),
    check() {
      const wrong = controls.filter((each) => {
        const text = each.problem();
        if (text) point(each, text);
        else each.show(null);
        return text !== null;
      });
      wrong[0]?.focus();
      return wrong.length === 0;
    },
    refuse(error) {
      if (!(error instanceof ApiError) || error.status !== 400) return false;
      // Each sentence begins with the name of a field: "wan_t2v: height must be … | steps must be …".
      const sentences = error.message.replace(/^[\w ]+: /, "").split(" | ");
      const pointed = sentences.map((text) => {
        const found = controls.find((each) => each.names.some((name) => text.startsWith(`${name} `)));
        if (found) point(found, text);
        return found;
      });
      const known = pointed.find((each) => each !== undefined);
      known?.focus();
      return pointed.every((each) => each !== undefined);
    },
    close: () => controls.forEach((each) => each.close?.()),
  };
}

/**
 * Show the length of a video below its number of frames.
 * @param {import("./controls.js").Control | undefined} frames
 * @param {import("./controls.js").Control | undefined} fps
 */
function showLength(frames, fps) {
  if (!frames || !fps) return;
  const line = element("p", { class: "field-note number" });
  frames.element.append(line);
  const show = () => {
    const length_s = Number(frames.values().frames) / Number(fps.values().fps);
    line.textContent = Number.isFinite(length_s) ? texts.common.form.length(length_s) : "";
  };
  for (const each of [frames, fps]) each.element.addEventListener("input", show);
  show();
}

/** @param {FieldDescription} field */
function isImportant(field) {
  return field.required || IMPORTANT.includes(field.name);
}

/** @param {FieldDescription} field */
function place(field) {
  const index = IMPORTANT.indexOf(field.name);
  return index < 0 ? IMPORTANT.length : index;
}
