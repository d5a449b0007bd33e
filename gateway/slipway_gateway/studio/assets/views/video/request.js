// @ts-check
/** The card with the form: choose a model, fill in its fields, make a video or drafts. */

import { element, replace } from "../../dom.js";
import { randomSeed } from "../../elements/controls.js";
import { errorNote, limits, note } from "../../elements/error-note.js";
import { examplePicture } from "../../elements/file-drop.js";
import { modelForm } from "../../elements/model-form.js";
import { button } from "../../elements/parts.js";
import { keepSetting, setting } from "../../settings.js";
import { texts } from "../../texts.js";
import { DRAFTS, draftFields } from "./drafts.js";

/** @typedef {import("../../types.js").Model} Model */
/** @typedef {import("../../types.js").Video} Video */

const words = texts.video.request;
const LAST_MODEL = "video.model";
/** Fields that the page sets itself where it needs them. */
const HIDDEN = ["stop_after_step", "draft", "checkpoint_every_steps"];

/** @typedef {import("../../types.js").RequestCard} RequestCard */

/**
 * Make the card.
 * @param {Model[]} first Models that make videos.
 * @param {(model: string, values: Record<string, any>) => Promise<Video>} create Function that creates a job.
 * @param {(videos: Video[], areDrafts: boolean) => void} onCreated
 * @returns {RequestCard}
 */
export function requestCard(first, create, onCreated) {
  let models = first;
  let current = chosenAtFirst(models);
  /** @type {import("../../elements/model-form.js").ModelForm | null} */
  let form = null;
  const place = element("div", { class: "stack" });
  const notes = element("div");
  const choice = element("div", { class: "stack tight" });
  const make = button("play", words.make, null, "primary large wide");
  const sheet = button("grid", words.drafts(DRAFTS), () => send(true), "wide");
  const whole = element(
    "form",
    { class: "card stack request", noValidate: true, "aria-label": words.label, on: { submit } },
    choice,
    place,
    notes,
    element("div", { class: "stack tight" }, make, sheet),
  );

  function showChoice() {
    const select = element(
      "select",
      { id: "video-model", on: { change: () => choose(select.value) } },
      models.map((model) =>
        element("option", { value: model.id }, model.ready ? model.id : words.notReady(model.id)),
      ),
    );
    select.value = current.id;
    const help = element("p", { class: "field-note" }, current.video?.summary ?? "");
    const label = element("label", { class: "field-label", for: "video-model" }, words.model);
    const about = current.video?.note && limits(current.video.note);
    replace(choice, element("h1", {}, words.title), models.length > 1 ? [label, select] : null, help, about);
  }

  /** @param {string} id */
  function choose(id) {
    const found = models.find((model) => model.id === id);
    if (!found) return;
    const typed = form?.values() ?? {};
    current = found;
    keepSetting(LAST_MODEL, id);
    showForm();
    // What both models have, such as the prompt, stays; numbers are the new model's own.
    const same = { prompt: typed.prompt, input_reference: typed.input_reference };
    form?.set(Object.fromEntries(Object.entries(same).filter(([, value]) => value !== undefined)));
    showChoice();
  }

  function showForm() {
    form?.close();
    const fields = current.video?.fields ?? [];
    form = modelForm(fields, { hidden: HIDDEN });
    replace(place, form.element);
    replace(notes);
    sheet.hidden = !current.video?.can_stop;
    const kept = setting(`video.form.${current.id}`, {});
    form.set(kept);
    const example = exampleOf(fields);
    if (example) place.append(button("edit", words.example, () => form?.set(example), "small example"));
  }

  /** @param {SubmitEvent} event */
  function submit(event) {
    event.preventDefault();
    send(false);
  }

  /** @param {boolean} asDrafts */
  async function send(asDrafts) {
    if (!form) return;
    replace(notes);
    if (!form.check()) return;
    const values = form.values();
    const plain = Object.fromEntries(Object.entries(values).filter(([, value]) => !(value instanceof File)));
    // Another model may be chosen while the drafts are sent.
    const { id } = current;
    keepSetting(`video.form.${id}`, plain);
    const requests = asDrafts ? draftFields(values.seed ?? randomSeed(), values.steps ?? 20) : [{}];
    make.disabled = sheet.disabled = true;
    /** @type {Video[]} */
    const made = [];
    try {
      for (const more of requests) made.push(await create(id, { ...values, ...more }));
    } catch (error) {
      if (!form.refuse(error)) replace(notes, errorNote(error));
    } finally {
      make.disabled = sheet.disabled = false;
    }
    if (made.length) onCreated(made, asDrafts);
  }

  showChoice();
  showForm();
  return {
    element: whole,
    fill(model, values) {
      const found = models.find((each) => each.id === model);
      if (!found) return false;
      if (found !== current) choose(model);
      form?.set(values);
      replace(notes);
      return true;
    },
    picture(file) {
      const found = [current, ...models].find((model) =>
        model.video?.fields.some((field) => field.type === "picture"),
      );
      if (!found) return false;
      if (found !== current) choose(found.id);
      form?.set({ input_reference: file });
      return true;
    },
    update(next) {
      const before = JSON.stringify(current.video);
      models = next;
      current = models.find((model) => model.id === current.id) ?? models[0];
      if (JSON.stringify(current.video) !== before) showForm();
      showChoice();
      if (!current.ready) replace(notes, note(words.waits));
      else if (notes.querySelector(".note:not(.bad)")) replace(notes);
    },
    say: (node) => replace(notes, node),
    close: () => form?.close(),
  };
}

/** @param {Model[]} models @returns {Model} */
function chosenAtFirst(models) {
  const last = setting(LAST_MODEL, "");
  // A sentence is all that such a model needs, so a newcomer can begin at once.
  const simple = models.find(
    (model) =>
      model.ready && !model.video?.fields.some((field) => field.type === "picture" && field.required),
  );
  return models.find((model) => model.id === last) ?? simple ?? models[0];
}

/** @param {import("../../types.js").FieldDescription[]} fields @returns {Record<string, any> | null} */
function exampleOf(fields) {
  const found = fields.filter((field) => field.example);
  return found.length ? Object.fromEntries(found.map((field) => [field.name, valueOf(field)])) : null;
}

/** @param {import("../../types.js").FieldDescription} field @returns {string | File} */
function valueOf(field) {
  return (field.type === "picture" && examplePicture(field)) || (field.example ?? "");
}
