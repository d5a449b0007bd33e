// @ts-check
/** What a form's control needs from the rule of a field, which is the second half of a sentence. */

/** @typedef {import("../types.js").FieldDescription} FieldDescription */

/** @typedef {import("../types.js").Limits} Limits */

const LARGEST_SHOWN = 1e9;

/**
 * Return the limits of a number, from its rule ("1 to 100", "a multiple of 16 above 0", "4k+1 and at least
 * 1") and from the range of the served model. A rule of another form gives no limit: the gateway checks it.
 * @param {FieldDescription} field
 * @returns {Limits}
 */
export function limitsOf(field) {
  const range = /(-?[\d.]+) to (-?[\d.]+)/.exec(field.rule);
  const multiple = /multiple of (\d+)/.exec(field.rule);
  const odd = /(\d+)k\+(\d+)/.exec(field.rule);
  const least = /at least (-?[\d.]+)/.exec(field.rule);
  const step = Number(multiple?.[1] ?? odd?.[1] ?? (field.type === "integer" ? 1 : 0));
  const base = odd ? Number(odd[2]) : 0;
  const low = field.minimum ?? number(range?.[1] ?? least?.[1]) ?? (multiple ? step : undefined);
  return { low, high: field.maximum ?? number(range?.[2]), step, base };
}

/**
 * Return true if a range can be shown to people as a whole.
 * @param {Limits} limits
 * @returns {limits is Limits & {low: number, high: number}}
 */
export function isRange(limits) {
  return limits.low !== undefined && limits.high !== undefined && limits.high < LARGEST_SHOWN;
}

/**
 * Return the allowed values of a field if there are few; an empty list otherwise.
 * @param {Limits} limits
 * @param {number} most Largest number of values.
 * @returns {number[]}
 */
export function fewValues(limits, most) {
  if (!isRange(limits) || limits.step <= 0) return [];
  const first = limits.base + Math.ceil((limits.low - limits.base) / limits.step) * limits.step;
  const count = Math.floor((limits.high - first) / limits.step) + 1;
  return count >= 1 && count <= most
    ? Array.from({ length: count }, (_, index) => first + index * limits.step)
    : [];
}

/** @param {string | undefined} text */
function number(text) {
  return text === undefined ? undefined : Number(text);
}
