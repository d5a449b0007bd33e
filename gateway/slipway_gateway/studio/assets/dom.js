// @ts-check
/**
 * The one way in which the studio makes elements. Texts become text nodes, never markup, so nothing that a
 * server or a file says can become part of the page's code.
 */

/** @typedef {Node | string | number | null | undefined | false} Child */
/**
 * @typedef {object} SpecialProperties
 * @property {string} [class] Classes, separated by spaces.
 * @property {Record<string, string | undefined>} [dataset] Values of data attributes.
 * @property {Record<string, string>} [style] Values of style properties, custom properties included.
 * @property {Record<string, (event: any) => void>} [on] Listeners by the names of their events.
 */
/** @typedef {SpecialProperties & Record<string, any>} Properties */

const SVG = "http://www.w3.org/2000/svg";
/** Attributes that have no property of the same name, or whose property is read-only. */
const ATTRIBUTES = new Set([
  "role",
  "for",
  "list",
  "form",
  "popover",
  "popovertarget",
  "inputmode",
  "enterkeyhint",
]);

/**
 * Make an HTML element.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag Name of the element.
 * @param {Properties} [properties] `class`, `dataset`, `style`, `on`, any `aria-` attribute, and properties
 *   of the element. A property that is undefined is left out.
 * @param {...(Child | Child[])} children Texts and nodes; null, undefined and false are left out.
 * @returns {HTMLElementTagNameMap[K]} The element.
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (name === "class") made.className = value;
    else if (name === "dataset") Object.assign(made.dataset, value);
    else if (name === "style") setStyle(made, value);
    else if (name === "on") listen(made, value);
    else if (name.includes("-") || ATTRIBUTES.has(name)) setAttribute(made, name, value);
    else Object.assign(made, { [name]: value });
  }
  append(made, children);
  return made;
}

/**
 * Make an SVG element.
 * @param {string} tag Name of the element.
 * @param {Record<string, string | number | undefined>} [attributes] Attributes; undefined is left out.
 * @param {...(Child | Child[])} children Texts and nodes.
 * @returns {SVGElement} The element.
 */
export function svg(tag, attributes = {}, ...children) {
  const made = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined) made.setAttribute(name, String(value));
  }
  append(made, children);
  return made;
}

/**
 * Replace everything inside an element.
 * @param {Element} parent Element.
 * @param {...(Child | Child[])} children New content.
 */
export function replace(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

/**
 * Put elements in their order, and take all others out. Nothing is moved that is in its place, and what has the
 * focus keeps it.
 * @param {Element} parent Element that has these elements and nothing else.
 * @param {Element[]} elements
 */
export function order(parent, elements) {
  const { children } = parent;
  if (elements.length === children.length && elements.every((each, at) => each === children[at])) return;
  const focused = document.activeElement;
  parent.replaceChildren(...elements);
  if (focused instanceof HTMLElement && parent.contains(focused)) focused.focus();
}

/**
 * Say a sentence to people who use a screen reader, when they have a moment.
 * @param {string} text Sentence.
 */
export function announce(text) {
  const region = document.getElementById("announcements");
  if (region) region.textContent = text;
}

/**
 * Make an icon. It is hidden from screen readers, so a button with nothing else needs an `aria-label`.
 * @param {keyof typeof PATHS} name Name of the icon.
 * @returns {SVGElement} The icon, as large as the text around it.
 */
export function icon(name) {
  return svg(
    "svg",
    { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    ...PATHS[name].split("|").map((d) => svg("path", { d })),
  );
}

/** @param {HTMLElement} made @param {Record<string, string>} style */
function setStyle(made, style) {
  for (const [name, value] of Object.entries(style)) made.style.setProperty(name, value);
}

/** @param {HTMLElement} made @param {Record<string, (event: any) => void>} listeners */
function listen(made, listeners) {
  for (const [event, run] of Object.entries(listeners)) made.addEventListener(event, run);
}

/** @param {HTMLElement} made @param {string} name @param {unknown} value */
function setAttribute(made, name, value) {
  if (value !== null && (value !== false || name.startsWith("aria-"))) made.setAttribute(name, String(value));
}

/** @param {Element} parent @param {(Child | Child[])[]} children */
function append(parent, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(typeof child === "number" ? String(child) : child);
  }
}

/** Lines of the icons, in a square of 24; a bar separates the paths of one icon. */
const PATHS = {
  video: "M4 6h11a1 1 0 0 1 1 1v10a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1V7a1 1 0 0 1 1-1z|M16 10.5 21 7.5v9l-5-3",
  world: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z|M3 12h18|M12 3c5 5 5 13 0 18|M12 3c-5 5-5 13 0 18",
  microphone: "M12 3a3 3 0 0 1 3 3v5a3 3 0 0 1-6 0V6a3 3 0 0 1 3-3z|M6 11a6 6 0 0 0 12 0|M12 17v4",
  motion: "M3 17c3-9 6-9 9-3s6 4 9-7|M3 21h18",
  fleet: "M4 4h16v6H4z|M4 14h16v6H4z|M8 7h.01|M8 17h.01",
  play: "M8 5.5v13l10.5-6.5z",
  pause: "M8 5v14|M16 5v14",
  stop: "M6 6h12v12H6z",
  close: "M6 6l12 12|M18 6 6 18",
  trash: "M4 7h16|M9 7V4h6v3|M6.5 7l1 13h9l1-13|M10 11v5|M14 11v5",
  again: "M20 11a8 8 0 1 0-2.5 6.5|M20 4.5V11h-6.5",
  download: "M12 4v11|M7 11l5 5 5-5|M4 20h16",
  upload: "M12 16V5|M7 9l5-5 5 5|M4 20h16",
  camera: "M4 8h3.5L9 5.5h6L16.5 8H20v11H4z|M12 10.2a3.2 3.2 0 1 0 0 6.4 3.2 3.2 0 0 0 0-6.4z",
  picture: "M4 5h16v14H4z|M4 16l5-5 4 4 3-3 4 4|M15.5 9h.01",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14z|M16 16l4.5 4.5",
  dice: "M5 5h14v14H5z|M9 9h.01|M15 9h.01|M12 12h.01|M9 15h.01|M15 15h.01",
  copy: "M9 9h11v11H9z|M15 9V4H4v11h5",
  compare: "M12 3v18|M4 6h5v12H4z|M15 6h5v12h-5z",
  edit: "M4 20l1-4L16.5 4.5l3 3L8 19z|M14 7l3 3",
  up: "M12 19V5|M6 11l6-6 6 6",
  down: "M12 5v14|M6 13l6 6 6-6",
  chevron: "M6 9l6 6 6-6",
  check: "M5 12.5l4.5 4.5L19 7",
  warning: "M12 4 2.5 20h19z|M12 10v4.5|M12 17.5h.01",
  info: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z|M12 11v5.5|M12 7.7h.01",
  key: "M8 11a4 4 0 1 0 0 8 4 4 0 0 0 0-8z|M11 12.5 20 4|M16.5 7l3 3",
  clock: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z|M12 7v5l3.5 2",
  grid: "M4 4h7v7H4z|M13 4h7v7h-7z|M4 13h7v7H4z|M13 13h7v7h-7z",
  gamepad: "M7 7h10a5 5 0 0 1 0 10l-2-3H9l-2 3A5 5 0 0 1 7 7z|M8 9v4|M6 11h4|M16 11h2",
  save: "M5 4h11l3 3v13H5z|M8 4v5h7V4|M8 20v-6h8v6",
};
