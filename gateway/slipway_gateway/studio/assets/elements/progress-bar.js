// @ts-check
/** A bar that shows how much of some work is done. */

import { element } from "../dom.js";

/** @typedef {import("../types.js").ProgressBar} ProgressBar */

/** Make a progress bar. @param {string} label Name of the work, for screen readers. @returns {ProgressBar} */
export function progressBar(label) {
  const fill = element("div", { class: "progress-fill" });
  const bar = element(
    "div",
    { class: "progress", role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 },
    element("div", { class: "progress-track" }, fill),
  );
  return {
    element: bar,
    set(share, text) {
      bar.classList.toggle("indefinite", share === null);
      fill.style.setProperty("--share", String(share ?? 0));
      if (share === null) bar.removeAttribute("aria-valuenow");
      else bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
      if (text) bar.setAttribute("aria-valuetext", text);
      else bar.removeAttribute("aria-valuetext");
    },
  };
}
