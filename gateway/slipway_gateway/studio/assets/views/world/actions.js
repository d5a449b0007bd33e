// @ts-check
/**
 * Actions of a world: each column of its controls becomes one action, or two if its values have a sign. An
 * action has a label, keys, and a place on the pad; what it sets becomes the event of an interaction.
 */

import { texts } from "../../texts.js";

/** @typedef {{name: string, columns: string[], minimum: number | null, maximum: number | null, help: string}} Control */
/** @typedef {"up" | "down" | "left" | "right" | null} Place */
/** @typedef {import("../../types.js").WorldAction} Action */
/** @typedef {Record<string, Record<string, number>>} Event */

/** Column that is 1 while no other column of its control is: a world that has it takes one action at a time. */
const RESTING = "still";
/** Part of the largest value by which a signed column turns; worlds learned slow turns. */
const TURN = 0.1;

const UP = ["KeyW", "ArrowUp", "Space"];
const DOWN = ["KeyS", "ArrowDown"];
const LEFT = ["KeyA", "ArrowLeft"];
const RIGHT = ["KeyD", "ArrowRight"];
/** Place and wanted keys by the name of a column; the first action that wants a key has it. */
/** @type {Record<string, [Place, string[]]>} */
const KNOWN = {
  forward: ["up", UP],
  jump: ["up", UP],
  up: ["up", UP],
  back: ["down", DOWN],
  slide: ["down", DOWN],
  down: ["down", DOWN],
  left: ["left", LEFT],
  left_side: ["left", LEFT],
  right: ["right", RIGHT],
  right_side: ["right", RIGHT],
  turn_left: [null, ["KeyZ", "KeyQ"]],
  turn_right: [null, ["KeyC", "KeyE"]],
};
const OPPOSITE = /** @type {Record<string, string>} */ ({ up: "down", right: "left", forward: "back" });
const ACROSS = { up: "down", down: "up", left: "right", right: "left" };
const LOOK = /** @type {Record<string, string[]>} */ ({
  up: ["KeyI"],
  down: ["KeyK"],
  left: ["KeyJ"],
  right: ["KeyL"],
});

/**
 * Return the actions of a world.
 *
 * @param {Control[]} controls Controls from the description of the model.
 * @returns {Action[]} Actions, those without a sign first.
 */
export function actionsOf(controls) {
  const plain = controls.filter((control) => !isSigned(control));
  const signed = controls.filter(isSigned);
  const made = [
    ...plain.flatMap((control) =>
      control.columns
        .filter((column) => column !== RESTING)
        .map((column) =>
          action(control, column, control.maximum ?? 1, column, label(column), KNOWN[column]?.[1]),
        ),
    ),
    ...signed.flatMap((control) =>
      control.columns.flatMap((column) => {
        const opposite = OPPOSITE[column] ?? `-${column}`;
        const size = TURN * (control.maximum ?? 1);
        return [
          [column, size],
          [opposite, -size],
        ].map(([side, value]) =>
          action(control, column, Number(value), String(side), texts.world.look(label(String(side))), [
            ...(KNOWN[side]?.[1] ?? []),
            ...(LOOK[side] ?? []),
          ]),
        );
      }),
    ),
  ];
  return withKeys(made);
}

/**
 * Return the event for what is held.
 *
 * @param {Control[]} controls Controls of the world.
 * @param {Action[]} held Actions that are held, the latest last.
 * @returns {Event} Values by field and column; a column that is not named is 0.
 */
export function eventOf(controls, held) {
  /** @type {Event} */
  const event = {};
  for (const control of controls) {
    const own = withoutOpposites(held.filter((each) => each.control === control.name));
    if (control.columns.includes(RESTING)) {
      const latest = own.at(-1);
      event[control.name] = latest ? { [latest.column]: latest.value } : { [RESTING]: 1 };
      continue;
    }
    for (const each of own) {
      const columns = (event[control.name] ??= {});
      columns[each.column] = (columns[each.column] ?? 0) + each.value;
    }
  }
  return event;
}

/** @param {Action[]} held @returns {Action[]} The actions; of two that are opposite, the later one. */
function withoutOpposites(held) {
  return held.filter(
    ({ place }, index) => !place || !held.slice(index + 1).some((later) => later.place === ACROSS[place]),
  );
}

/** @param {string} code @returns {string} Words for a key. */
export function keyName(code) {
  return (
    texts.world.keys[/** @type {keyof typeof texts.world.keys} */ (code)] ?? code.replace(/^(Key|Digit)/, "")
  );
}

/** @param {Control} control */
function isSigned(control) {
  return control.minimum !== null && control.minimum < 0;
}

/** @param {string} column */
function label(column) {
  return column.replaceAll("_", " ");
}

/**
 * @param {Control} control
 * @param {string} column
 * @param {number} value
 * @param {string} side
 * @param {string} text
 * @param {string[]} [codes]
 * @returns {Action}
 */
function action(control, column, value, side, text, codes = []) {
  const place = KNOWN[side]?.[0] ?? null;
  return { id: `${control.name}.${side}`, control: control.name, column, value, label: text, place, codes };
}

/** @param {Action[]} actions @returns {Action[]} The actions, each key with one of them. */
function withKeys(actions) {
  /** @type {Set<string>} */
  const taken = new Set();
  let digit = 1;
  return actions.map((each) => {
    const codes = each.codes.filter((code) => !taken.has(code));
    if (!codes.length && digit <= 9) codes.push(`Digit${digit++}`);
    codes.forEach((code) => taken.add(code));
    return { ...each, codes };
  });
}
