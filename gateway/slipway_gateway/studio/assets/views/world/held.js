// @ts-check
/** Which actions are held, by keys, by fingers on the pad, or by a gamepad. */

const DEAD_ZONE = 0.4;
/** Buttons of a standard gamepad that mean a place: the cross, and the lower button for up (a jump). */
const BUTTONS = /** @type {const} */ ([
  [12, "up"],
  [13, "down"],
  [14, "left"],
  [15, "right"],
  [0, "up"],
]);

/** @typedef {import("./actions.js").Action} Action */

export class Held {
  /**
   * @param {Action[]} actions Actions of the world.
   * @param {(held: Action[]) => void} onChange Receiver of the held actions, the latest last.
   */
  constructor(actions, onChange) {
    this.actions = actions;
    this.onChange = onChange;
    /** @type {Map<string, Set<string>>} Sources that hold an action, in the order of the actions' beginnings. */
    this.sources = new Map();
    this.hasGamepad = false;
    this.polling = 0;
    this.ending = new AbortController();
  }

  /** Listen to the keyboard and to gamepads. */
  listen() {
    const { signal } = this.ending;
    addEventListener("keydown", (event) => this.#key(event, true), { signal });
    addEventListener("keyup", (event) => this.#key(event, false), { signal });
    addEventListener("blur", () => this.releaseAll(), { signal });
    document.addEventListener("visibilitychange", () => document.hidden && this.releaseAll(), { signal });
    this.#poll();
  }

  /** Listen no longer, and release everything. */
  close() {
    this.ending.abort();
    cancelAnimationFrame(this.polling);
    this.releaseAll();
  }

  /**
   * Hold an action, or release it.
   *
   * @param {string} id Id of the action.
   * @param {string} source Key, finger or gamepad that holds it.
   * @param {boolean} isDown
   */
  set(id, source, isDown) {
    const holders = this.sources.get(id) ?? new Set();
    if (holders.has(source) === isDown) return;
    if (isDown) holders.add(source);
    else holders.delete(source);
    if (!holders.size) this.sources.delete(id);
    else if (!this.sources.has(id)) this.sources.set(id, holders);
    this.onChange(this.current());
  }

  /** @returns {Action[]} Held actions, the latest last. */
  current() {
    return [...this.sources.keys()].flatMap((id) => this.actions.find((each) => each.id === id) ?? []);
  }

  releaseAll() {
    if (!this.sources.size) return;
    this.sources.clear();
    this.onChange([]);
  }

  /** @param {KeyboardEvent} event @param {boolean} isDown */
  #key(event, isDown) {
    const action = this.actions.find((each) => each.codes.includes(event.code));
    if (!action || (isDown && (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)))) {
      return;
    }
    // A button that has the focus keeps its own key.
    if (event.code === "Space" && event.target instanceof HTMLButtonElement) return;
    if (isDown) event.preventDefault();
    if (!event.repeat) this.set(action.id, event.code, isDown);
  }

  /** Look at the gamepads once for each picture of the screen. */
  #poll() {
    const pads = navigator.getGamepads?.().filter((pad) => pad !== null) ?? [];
    if (pads.length || this.hasGamepad) {
      const wanted = new Set(pads.flatMap((pad) => this.#wantedBy(pad)));
      this.hasGamepad = pads.length > 0;
      for (const { id } of this.actions) this.set(id, "gamepad", wanted.has(id));
    }
    this.polling = requestAnimationFrame(() => this.#poll());
  }

  /** @param {Gamepad} pad @returns {string[]} Ids of the actions that a gamepad holds. */
  #wantedBy(pad) {
    const controls = [...new Set(this.actions.map((each) => each.control))];
    const [x = 0, y = 0, lookX = 0, lookY = 0] = pad.axes;
    const places = /** @type {[string, string][]} */ ([
      ...placesOf(x, y).map((place) => [controls[0], place]),
      ...placesOf(lookX, lookY).map((place) => [controls.at(-1), place]),
      ...BUTTONS.filter(([button]) => pad.buttons[button]?.pressed).map(([, place]) => [controls[0], place]),
    ]);
    return places.flatMap(([control, place]) =>
      this.actions.filter((each) => each.control === control && each.place === place).map((each) => each.id),
    );
  }
}

/** @param {number} x @param {number} y @returns {string[]} Places that a stick points to. */
function placesOf(x, y) {
  return [
    ...(Math.abs(x) > DEAD_ZONE ? [x > 0 ? "right" : "left"] : []),
    ...(Math.abs(y) > DEAD_ZONE ? [y > 0 ? "down" : "up"] : []),
  ];
}

/** @param {EventTarget | null} target */
function isTyping(target) {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName))
  );
}
