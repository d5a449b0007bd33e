// @ts-check
/** The pad under the picture: a button for each action, for fingers and the mouse; it shows what is held. */

import { element } from "../../dom.js";
import { texts } from "../../texts.js";
import { keyName } from "./actions.js";

/** @typedef {import("./actions.js").Action} Action */

const ARROWS = /** @type {Record<string, string>} */ ({ up: "↑", down: "↓", left: "←", right: "→" });

/**
 * Make the pad.
 *
 * @param {Action[]} actions Actions of the world.
 * @param {(id: string, source: string, isDown: boolean) => void} set Function that holds or releases an action.
 * @returns {{element: HTMLElement, show: (held: Action[]) => void}} The pad, and a function that marks what is
 *   held.
 */
export function makePad(actions, set) {
  const buttons = new Map(actions.map((action) => [action.id, makeButton(action, set)]));
  const groups = [...new Set(actions.map((action) => action.control))].map((control) => {
    const own = actions.filter((action) => action.control === control);
    const placed = own.filter((action) => action.place !== null);
    const others = own.filter((action) => action.place === null);
    return element(
      "div",
      { class: "pad-group", role: "group", "aria-label": texts.world.group(control) },
      placed.length > 0 &&
        element(
          "div",
          { class: "pad-cross" },
          placed.map((each) => buttons.get(each.id)),
        ),
      others.length > 0 &&
        element(
          "div",
          { class: "pad-others" },
          others.map((each) => buttons.get(each.id)),
        ),
    );
  });
  return {
    element: element("div", { class: "pad" }, groups),
    show: (held) => {
      const ids = new Set(held.map((action) => action.id));
      buttons.forEach((button, id) => button.setAttribute("aria-pressed", String(ids.has(id))));
    },
  };
}

/**
 * @param {Action} action
 * @param {(id: string, source: string, isDown: boolean) => void} set
 */
function makeButton(action, set) {
  /** @param {PointerEvent} event */
  const release = (event) => set(action.id, `pointer ${event.pointerId}`, false);
  /** @param {KeyboardEvent} event @param {boolean} isDown */
  const press = (event, isDown) => {
    if (event.code !== "Enter" && event.code !== "Space") return;
    event.preventDefault();
    event.stopPropagation();
    if (!event.repeat) set(action.id, "button", isDown);
  };
  const [key] = action.codes;
  const button = element(
    "button",
    {
      class: "pad-button",
      type: "button",
      dataset: { place: action.place ?? undefined, action: action.id },
      "aria-pressed": false,
      "aria-label": texts.world.hold(action.label),
      title: key ? texts.world.holdByKey(action.label, action.codes.map(keyName)) : action.label,
      on: {
        pointerdown: (event) => {
          event.preventDefault();
          button.setPointerCapture(event.pointerId);
          set(action.id, `pointer ${event.pointerId}`, true);
        },
        pointerup: release,
        pointercancel: release,
        lostpointercapture: release,
        contextmenu: (event) => event.preventDefault(),
        keydown: (event) => press(event, true),
        keyup: (event) => press(event, false),
        blur: () => set(action.id, "button", false),
      },
    },
    element(
      "span",
      { class: "pad-arrow", "aria-hidden": true },
      action.place ? ARROWS[action.place] : action.label,
    ),
    key && element("kbd", { class: "pad-key", "aria-hidden": true }, keyName(key)),
  );
  return button;
}
