// @ts-check
/** The dialog that asks for a key when the gateway wants one. */

import { element } from "../dom.js";
import { texts } from "../texts.js";
import { button, dialog, labelled } from "./parts.js";

const words = texts.common.key;

/**
 * Ask the user for a key.
 * @param {boolean} wasWrong True if the gateway did not accept the key before.
 * @returns {Promise<string | null>} The key, or null if the user closes the dialog.
 */
export function askForKey(wasWrong) {
  const input = element("input", {
    id: "api-key",
    type: "password",
    autocomplete: "off",
    required: true,
    placeholder: "sk-slipway-…",
    "aria-describedby": "api-key-note",
    "aria-invalid": wasWrong,
  });
  return new Promise((resolve) => {
    const form = element(
      "form",
      {
        class: "stack",
        on: { submit: (event) => (event.preventDefault(), shown.close(input.value.trim())) },
      },
      wasWrong && element("p", { class: "field-error", role: "alert" }, words.wrong),
      element("p", {}, words.text),
      element("pre", { class: "code" }, words.command),
      labelled(words.label, input),
      element("p", { id: "api-key-note", class: "muted small" }, words.kept),
      element("div", { class: "row end" }, button(null, words.send, null, "primary")),
    );
    const shown = dialog(words.title, "", form, () => resolve(shown.returnValue || null));
  });
}
