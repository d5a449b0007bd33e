// @ts-check
/** The view "world": a picture becomes a world, which keys, touch and a gamepad steer. */

import { announce, element, icon, replace } from "../dom.js";
import { errorNote } from "../elements/error-note.js";
import { button, labelled } from "../elements/parts.js";
import { keepSetting, setting } from "../settings.js";
import { texts } from "../texts.js";
import { actionsOf, eventOf } from "./world/actions.js";
import { FramePlayer } from "./world/frame-player.js";
import { Held } from "./world/held.js";
import { Meters } from "./world/meters.js";
import { makePad } from "./world/pad.js";
import { pictureText } from "./world/picture.js";
import { WorldSession } from "./world/session.js";
import { startForm } from "./world/start-form.js";

/** @typedef {import("../types.js").Model} Model */
/** @typedef {import("../types.js").WorldModel} WorldModel */

const FORMAT = "jpeg";
const LAST_MODEL = "world.model";
const words = texts.world;

/** @param {Model[]} models */
function shown(models) {
  return models.filter((model) => model.world?.formats.includes(FORMAT));
}

/** @type {import("../types.js").View} */
export const view = {
  id: "world",
  label: words.label,
  icon: "world",
  models: shown,
  build: (context) => {
    const content = element("div", {});
    let part = /** @type {{element: HTMLElement, close: () => void} | null} */ (null);
    let models = shown(context.models);
    let chosen = models.find(({ id }) => id === setting(LAST_MODEL, "")) ?? models[0];
    const choice = element("div", { class: "slot" });

    /** @param {Model} model */
    function open(model) {
      chosen = model;
      keepSetting(LAST_MODEL, model.id);
      part?.close();
      part = new WorldStage(context, model.id, /** @type {WorldModel} */ (model.world));
      replace(content, part.element);
    }

    function showChoice() {
      replace(choice, models.length > 1 && modelChoice(models, chosen, open));
    }
    showChoice();
    open(chosen);
    return {
      element: element(
        "section",
        { class: "view" },
        element("h1", { class: "visually-hidden" }, words.label),
        choice,
        content,
      ),
      close: () => part?.close(),
      update: (all) => {
        models = shown(all);
        showChoice();
      },
    };
  },
};

/** @param {Model[]} models @param {Model} chosen @param {(model: Model) => void} open */
function modelChoice(models, chosen, open) {
  const select = element(
    "select",
    {
      id: "world-model",
      on: { change: () => open(/** @type {Model} */ (models.find(({ id }) => id === select.value))) },
    },
    models.map(({ id }) => element("option", { value: id, selected: id === chosen.id }, id)),
  );
  return labelled(words.model, select);
}

/** One world: its picture, its controls, and the cards beside it. */
class WorldStage {
  /** @param {import("../types.js").Context} context @param {string} id @param {WorldModel} world */
  constructor(context, id, world) {
    this.context = context;
    this.id = id;
    this.world = world;
    /** @type {WorldSession | null} */
    this.session = null;
    /** @type {Held | null} */
    this.held = null;
    this.heldCount = 0;
    this.lastBlock = -1;
    this.actions = actionsOf(world.controls);
    this.meters = new Meters();
    this.canvas = element("canvas", {
      class: "world-picture",
      width: 16,
      height: 9,
      role: "img",
      "aria-label": words.picture,
    });
    this.player = new FramePlayer(this.canvas, (facts) => this.#drawn(facts));
    this.overlay = element("div", { class: "world-overlay" });
    this.status = element("div", { class: "world-status", role: "status", hidden: true });
    this.frame = element(
      "div",
      { class: "world-frame", tabIndex: -1 },
      this.canvas,
      this.overlay,
      this.status,
    );
    this.pad = makePad(this.actions, (action, source, isDown) => this.held?.set(action, source, isDown));
    this.problem = element("div", { class: "slot" });
    this.side = element("div", { class: "stack world-side" });
    this.form = startForm(world, {
      onPicture: (file) => this.#showPicture(file),
      onStart: () => this.start(null),
      onRestore: (file) => this.start(file),
    });
    this.controls = element(
      "div",
      { class: "card world-controls" },
      this.pad.element,
      element("p", { class: "muted small world-hint" }, icon("gamepad"), words.hint),
    );
    this.element = element(
      "div",
      { class: "world-layout" },
      element("div", { class: "stack world-main" }, this.frame, this.controls, this.problem),
      this.side,
    );
    this.frame.addEventListener("dragover", (event) => event.preventDefault());
    this.frame.addEventListener("drop", (event) => this.#dropped(event));
    this.#idle();
  }

  close() {
    this.#end();
    this.player.close();
    this.meters.close();
    this.form.close();
  }

  /** Begin a world. @param {File | null} state Saved world to go on from; null to begin with the picture. */
  async start(state) {
    const { picture, seed, fps } = this.form.choice();
    if (!state && !picture) return;
    const image = state || !picture ? "" : await pictureText(picture);
    const opening = state
      ? { model: this.id, format: FORMAT }
      : { model: this.id, format: FORMAT, image, seed, fps };
    this.#end();
    replace(this.problem);
    this.meters.close();
    this.meters = new Meters();
    this.lastBlock = -1;
    this.player.clear();
    this.#say(state ? words.restoring : words.connecting, true);
    this.session = new WorldSession(this.context.api, opening, state, {
      onStart: (config) => {
        this.player.fps = config.fps;
        this.meters.begin(config);
        const resting = eventOf(this.world.controls, []);
        if (Object.keys(resting).length) this.session?.steer(resting, true);
        this.#say(words.making, true);
      },
      onQueue: (position, depth) => this.#say(words.inLine(position, depth), true),
      onFrame: (data, facts) => {
        this.meters.arrived(facts);
        this.player.add(data, facts);
      },
      onError: (text, isEnd) => this.#failed(text, isEnd),
      onLost: (isLost) => this.#say(isLost ? words.lost : "", isLost),
      onMove: (stage) => this.#say(stage === "moving" ? words.moving : "", stage === "moving"),
      onSaved: (file) => this.#saved(file),
      onEnd: (stopped) => this.#ended(stopped),
    });
    this.#playing();
  }

  /** Show the cards and buttons of a world that is played. */
  #playing() {
    replace(this.overlay);
    this.held = new Held(this.actions, (held) => this.#steer(held));
    this.held.listen();
    this.save = button("save", words.save, () => {
      this.save.disabled = true;
      this.session?.save();
    });
    const stop = button("stop", words.stop, () => this.session?.stop(), "danger");
    replace(
      this.side,
      element(
        "div",
        { class: "card stack" },
        element("div", { class: "row" }, stop, this.world.can_save && this.save),
        element("p", { class: "muted small" }, this.world.can_save ? words.saveText : ""),
      ),
      this.meters.element,
    );
    this.controls.hidden = false;
    // The space bar steers, so no button may have the focus.
    this.frame.focus();
  }

  /** Show the form, and a button over the picture. */
  #idle() {
    const play = element(
      "button",
      {
        class: "world-play",
        type: "button",
        "aria-label": words.start.start,
        on: { click: () => this.start(null) },
      },
      icon("play"),
    );
    this.play = play;
    play.hidden = !this.form.choice().picture;
    replace(this.overlay, play);
    replace(this.side, this.form.element);
  }

  /** @param {import("./world/actions.js").Action[]} held */
  #steer(held) {
    this.pad.show(held);
    this.session?.steer(eventOf(this.world.controls, held), held.length < this.heldCount);
    this.heldCount = held.length;
  }

  /** @param {import("./world/session.js").ChunkFacts} facts */
  #drawn(facts) {
    const session = this.session;
    this.meters.drawn(session?.reaction(facts.started_event_ids) ?? null);
    session?.acknowledge(facts.transport_chunk_index + 1);
    if (facts.generation_chunk_index !== this.lastBlock) {
      if (this.lastBlock < 0) this.#say("", false);
      this.lastBlock = facts.generation_chunk_index;
    }
  }

  /** @param {Blob} file */
  #saved(file) {
    this.save.disabled = false;
    const url = URL.createObjectURL(file);
    const time = new Date().toISOString().slice(0, 19).replaceAll(":", "-");
    element("a", { href: url, download: `${this.id}-${time}.world` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    announce(words.saved);
  }

  /** @param {string} text @param {boolean} isEnd */
  #failed(text, isEnd) {
    if (this.save) this.save.disabled = false;
    if (text) replace(this.problem, errorNote(text));
    else if (isEnd && !this.problem.hasChildNodes()) replace(this.problem, errorNote(words.broken));
    if (isEnd) this.#ended(true);
  }

  /** @param {boolean} stopped True if somebody ended the world; false if it came to its end. */
  #ended(stopped) {
    this.#end();
    this.#say(stopped ? "" : words.atEnd, false);
    this.#idle();
    this.meters.close();
    this.side.append(this.meters.element);
    this.play?.focus();
  }

  #end() {
    this.session?.isOver || this.session?.close();
    this.session = null;
    this.held?.close();
    this.held = null;
    this.heldCount = 0;
    this.pad.show([]);
  }

  /** @param {string} text @param {boolean} isBusy */
  #say(text, isBusy) {
    this.status.classList.toggle("busy", isBusy);
    this.status.hidden = text === "";
    this.status.textContent = text;
  }

  /** @param {File | null} file */
  async #showPicture(file) {
    if (this.play) this.play.hidden = file === null;
    const bitmap = file && (await createImageBitmap(file).catch(() => null));
    if (!bitmap || this.session) return;
    this.player.show(bitmap);
    bitmap.close();
  }

  /** @param {DragEvent} event */
  #dropped(event) {
    event.preventDefault();
    const file = event.dataTransfer?.files[0];
    if (!file || this.session) return;
    if (file.name.endsWith(".world")) this.start(file);
    else if (file.type.startsWith("image/")) this.form.takePicture(file);
  }
}
