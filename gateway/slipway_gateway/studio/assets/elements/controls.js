// @ts-check
/** Controls of a form: one for a field of a model, made from the field's description. */

import { element } from "../dom.js";
import { texts } from "../texts.js";
import { fileDrop } from "./file-drop.js";
import { knownWords } from "./known-words.js";
import { iconButton } from "./parts.js";
import { fewValues, isRange, limitsOf } from "./rule.js";

/** @typedef {import("../types.js").FieldDescription} FieldDescription */

/** @typedef {import("../types.js").Control} Control */

const words = texts.common.form;
let count = 0;

/**
 * Make the control of a field.
 * @param {FieldDescription} field
 * @param {{note: boolean}} options `note` shows the field's help below it.
 * @returns {Control | null} Null for a field that a form cannot give.
 */
export function control(field, options) {
  if (field.type === "array") return null;
  if (field.type === "picture") return pictureControl(field);
  if (field.type === "boolean") return checkControl(field);
  if (field.name === "seed") return seedControl(field, options);
  const input = inputOf(field);
  return single(field, options, input, input, () => given(field, input.value));
}

/** Return the name of a field for people. @param {string} name @returns {string} */
export function labelOf(name) {
  /** @type {Record<string, string>} */
  const known = words.names;
  const plain = name.replace(/_(s|ms|px)$/, "").replaceAll("_", " ");
  return known[name] ?? plain.charAt(0).toUpperCase() + plain.slice(1);
}

/**
 * Make one control of width and height.
 * @param {FieldDescription} width
 * @param {FieldDescription} height
 * @returns {Control}
 */
export function sizeControl(width, height) {
  const sides = [width, height].map((field) => ({ field, input: inputOf(field) }));
  const [{ input: wide }, { input: high }] = sides;
  wide.setAttribute("aria-label", words.width);
  high.setAttribute("aria-label", words.height);
  const group = element(
    "fieldset",
    { class: "field" },
    element(
      "legend",
      { class: "field-label" },
      words.size,
      " ",
      element("span", { class: "field-unit" }, "px"),
    ),
    element(
      "div",
      { class: "size-inputs" },
      wide,
      element("span", { class: "muted", "aria-hidden": "true" }, "×"),
      high,
    ),
  );
  const error = problemLine(group, [wide, high]);
  return {
    names: [width.name, height.name],
    element: group,
    values: () =>
      Object.assign({}, ...sides.map(({ field, input }) => named(field, given(field, input.value)))),
    set: (values) =>
      sides.forEach(({ field, input }) => field.name in values && put(input, values[field.name])),
    problem: () => sides.map(({ field, input }) => problemOf(field, input)).find(Boolean) ?? null,
    show: error,
    focus: () => wide.focus(),
  };
}

/**
 * @param {FieldDescription} field
 * @param {{note: boolean}} options
 * @param {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} input
 * @param {HTMLElement} shown Element in the place of the input: itself, or a row with it.
 * @param {() => any} value
 * @returns {Control}
 */
function single(field, options, input, shown, value) {
  input.id = `field-${count++}`;
  const noteId = `${input.id}-note`;
  const note = options.note ? noteText(field) : "";
  const unit = field.unit ?? (field.name.endsWith("_s") ? "s" : undefined);
  const whole = element(
    "div",
    { class: `field${input instanceof HTMLTextAreaElement ? " wide" : ""}` },
    element(
      "label",
      { class: "field-label", for: input.id },
      labelOf(field.name),
      unit ? [" ", element("span", { class: "field-unit" }, unit)] : null,
    ),
    shown,
    note ? element("p", { class: "field-note", id: noteId }, note) : null,
    field.known_words?.length && !(input instanceof HTMLSelectElement)
      ? knownWords(field.known_words, input)
      : null,
  );
  if (note) input.setAttribute("aria-describedby", noteId);
  return {
    names: [field.name],
    element: whole,
    values: () => named(field, value()),
    set: (values) => field.name in values && put(input, values[field.name]),
    problem: () => problemOf(field, input),
    show: problemLine(whole, [input]),
    focus: () => input.focus(),
  };
}

/** @param {FieldDescription} field @param {{note: boolean}} options @returns {Control} */
function seedControl(field, options) {
  const input = inputOf({ ...field, default: null, default_text: words.random });
  const roll = iconButton("dice", words.newSeed, () => put(input, randomSeed()));
  const row = element("div", { class: "input-row" }, input, roll);
  return single(field, options, input, row, () => given(field, input.value));
}

/** @returns {number} A seed that every model takes. */
export function randomSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
}

/** @param {FieldDescription} field @returns {Control} */
function checkControl(field) {
  const input = element("input", {
    type: "checkbox",
    id: `field-${count++}`,
    checked: field.default === true,
  });
  const whole = element(
    "div",
    { class: "field" },
    element("label", { class: "check" }, input, labelOf(field.name)),
    element("p", { class: "field-note" }, noteText(field)),
  );
  return {
    names: [field.name],
    element: whole,
    values: () => ({ [field.name]: input.checked }),
    set: (values) => field.name in values && (input.checked = values[field.name] === true),
    problem: () => null,
    show: problemLine(whole, [input]),
    focus: () => input.focus(),
  };
}

/** @param {FieldDescription} field @returns {Control} */
function pictureControl(field) {
  const drop = fileDrop({
    label: labelOf(field.name),
    hint: texts.common.file.dropPicture,
    accept: "image/*",
    camera: true,
    paste: field.name === "input_reference",
    passOn: true,
    onFile: () => show(null),
  });
  const whole = element(
    "div",
    { class: "field wide" },
    element("span", { class: "field-label" }, labelOf(field.name)),
    drop.element,
    element("p", { class: "field-note" }, sentence(field.help)),
  );
  const show = problemLine(whole, []);
  return {
    names: [field.name],
    element: whole,
    values: () => (drop.file() ? { [field.name]: drop.file() } : {}),
    set: (values) => values[field.name] instanceof File && drop.set(values[field.name]),
    problem: () => (field.required && !drop.file() ? words.picture : null),
    show,
    focus: () => drop.element.querySelector("button")?.focus(),
    close: drop.close,
  };
}

/** @param {FieldDescription} field @returns {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} */
function inputOf(field) {
  const limits = limitsOf(field);
  const values =
    field.type === "string" ? (field.choices ?? []) : field.name === "seed" ? [] : fewValues(limits, 12);
  const usual = field.default === null ? undefined : String(field.default);
  if (values.length) {
    const options = values.map((value) =>
      element("option", { value: String(value) }, labelOf(String(value))),
    );
    const none = element("option", { value: "" }, field.default_text ?? words.usual);
    const select = element("select", {}, usual === undefined ? none : null, options);
    select.value = usual ?? "";
    return select;
  }
  if (field.type === "string") {
    if (field.name.includes("prompt")) {
      return element("textarea", {
        rows: 3,
        value: usual ?? "",
        required: field.required,
        placeholder: field.example ? words.forExample(field.example) : "",
      });
    }
    return element("input", { type: "text", value: usual ?? "", placeholder: field.default_text ?? "" });
  }
  return element("input", {
    type: "number",
    inputmode: field.type === "integer" ? "numeric" : "decimal",
    value: usual ?? "",
    placeholder: field.default_text ?? "",
    step: limits.step && limits.base === 0 && limits.step > 1 ? String(limits.step) : "any",
    min: limits.low === undefined ? "" : String(limits.low),
    max: limits.high === undefined ? "" : String(limits.high),
  });
}

/** @param {FieldDescription} field @param {string} text @returns {any} Value, or undefined. */
function given(field, text) {
  if (text.trim() === "") return undefined;
  return field.type === "string" ? text : Number(text);
}

/** @param {FieldDescription} field @param {any} value @returns {Record<string, any>} */
function named(field, value) {
  return value === undefined ? {} : { [field.name]: value };
}

/** @param {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} input @param {any} value */
function put(input, value) {
  input.value = value === null || value === undefined ? "" : String(value);
  input.dispatchEvent(new Event("input", { bubbles: true }));
}

/**
 * @param {FieldDescription} field
 * @param {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} input
 * @returns {string | null}
 */
function problemOf(field, input) {
  const text = input.value.trim();
  if (input instanceof HTMLInputElement && input.validity.badInput) return words.number;
  if (text === "") return field.required ? words.required : null;
  if (field.type === "string") return null;
  const value = Number(text);
  const limits = limitsOf(field);
  if (!Number.isFinite(value)) return words.number;
  if (field.type === "integer" && !Number.isInteger(value)) return words.whole;
  const isOutside =
    (limits.low !== undefined && value < limits.low) || (limits.high !== undefined && value > limits.high);
  if (isOutside && isRange(limits)) return words.range(words.between(limits.low, limits.high));
  return isOutside ? words.range(field.rule) : null;
}

/**
 * Return a function that shows a sentence below a field and marks its inputs.
 * @param {HTMLElement} whole
 * @param {HTMLElement[]} inputs
 * @returns {(text: string | null) => void}
 */
function problemLine(whole, inputs) {
  const line = element("p", { class: "field-error", role: "alert", hidden: true });
  whole.append(line);
  inputs.forEach((input) => input.addEventListener("input", () => show(null)));
  /** @param {string | null} text */
  function show(text) {
    line.textContent = text ?? "";
    line.hidden = text === null;
    inputs.forEach((input) => input.setAttribute("aria-invalid", String(text !== null)));
  }
  return show;
}

/** @param {FieldDescription} field @returns {string} */
function noteText(field) {
  const rule = field.rule && !field.choices ? `, ${field.rule}` : "";
  return sentence(field.help + (rule.includes("2147483647") ? "" : rule));
}

/** @param {string} text @returns {string} */
function sentence(text) {
  return text ? `${text.charAt(0).toUpperCase()}${text.slice(1)}.` : "";
}
