// @ts-check
/** Small settings of the page that outlive it: the last model, folded parts. They are kept in the browser. */

const PREFIX = "slipway.";

/**
 * Return a setting.
 * @template T
 * @param {string} name Name of the setting.
 * @param {T} usual Value if there is none.
 * @returns {T} The setting.
 */
export function setting(name, usual) {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? usual : JSON.parse(text);
  } catch {
    return usual; // A browser may forbid storage, and the text may be of another version.
  }
}

/**
 * Keep a setting.
 * @param {string} name Name of the setting.
 * @param {unknown} value Value that JSON can express.
 */
export function keepSetting(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Without storage the page works, and forgets.
  }
}
