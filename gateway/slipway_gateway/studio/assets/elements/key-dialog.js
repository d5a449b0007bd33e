// @ts-check
/** The dialog that asks for a key when the gateway wants one. */

import { element, icon } from "../dom.js";
import { texts } from "../texts.js";

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
  const dialog = element(
    "dialog",
    { class: "dialog", "aria-labelledby": "api-key-title" },
    element(
      "form",
      {
        class: "stack",
        on: { submit: (event) => (event.preventDefault(), dialog.close(input.value.trim())) },
      },
      element("h2", { id: "api-key-title", class: "with-icon" }, icon("key"), words.title),
      wasWrong && element("p", { class: "field-error", role: "alert" }, words.wrong),
      element("p", {}, words.text),
      element("pre", { class: "code" }, words.command),
      element("label", { class: "field-label", for: "api-key" }, words.label),
      input,
      element("p", { id: "api-key-note", class: "muted small" }, words.kept),
      element(
        "div",
        { class: "row end" },
        element(
          "button",
          { class: "button", type: "button", on: { click: () => dialog.close("") } },
          texts.common.cancel,
        ),
        element("button", { class: "button primary", type: "submit" }, words.send),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue || null);
    });
  });
}
