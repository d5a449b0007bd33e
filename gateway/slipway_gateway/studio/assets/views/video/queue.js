// @ts-check
/** Jobs that wait, in the order in which they will run; each can be moved, changed, copied and removed. */

import { element, icon, replace } from "../../dom.js";
import { errorNote } from "../../elements/error-note.js";
import { modelForm } from "../../elements/model-form.js";
import { texts } from "../../texts.js";
import { promptOf } from "./stage.js";

/** @typedef {import("../../types.js").Video} Video */

const words = texts.video.queue;

/**
 * @typedef {object} QueueOptions
 * @property {(video: Video, before: Video) => Promise<void>} move Function that puts one job before another.
 * @property {(video: Video) => Promise<void>} edit
 * @property {(video: Video) => Promise<void>} duplicate
 * @property {(video: Video) => Promise<void>} remove
 */

/**
 * Make the queue. It is hidden while no job waits.
 * @param {QueueOptions} options
 * @returns {{element: HTMLElement, show: (videos: Video[]) => void}}
 */
export function queue({ move, edit, duplicate, remove }) {
  const list = element("ol", { class: "queue" });
  const whole = element(
    "section",
    { class: "card stack", hidden: true, "aria-labelledby": "queue-title" },
    element("h2", { id: "queue-title" }, words.title),
    list,
  );
  let told = "";

  /** @param {Video[]} videos */
  function show(videos) {
    const waiting = videos
      .filter((video) => video.status === "queued")
      .sort((a, b) => (a.queue_position ?? 0) - (b.queue_position ?? 0));
    whole.hidden = waiting.length === 0;
    const text = JSON.stringify(
      waiting.map((video) => [video.id, video.queue_position, promptOf(video), video.seed]),
    );
    if (text === told) return;
    told = text;
    replace(
      list,
      waiting.map((video, index) => row(video, waiting[index - 1], waiting[index + 1])),
    );
  }

  /** @param {Video} video @param {Video | undefined} before @param {Video | undefined} after */
  function row(video, before, after) {
    const name = promptOf(video);
    return element(
      "li",
      { class: "queue-row", dataset: { id: video.id } },
      element("span", { class: "queue-place number" }, String(video.queue_position ?? "")),
      element(
        "span",
        { class: "grow" },
        element("span", { class: "one-line queue-prompt" }, name),
        element("span", { class: "muted small number" }, words.note(video)),
      ),
      element(
        "span",
        { class: "row queue-buttons" },
        button("up", words.up(name), before ? () => move(video, before) : null),
        button("down", words.down(name), after ? () => move(after, video) : null),
        button("edit", words.edit(name), () => edit(video)),
        button("copy", words.duplicate(name), () => duplicate(video)),
        button("trash", words.remove(name), () => remove(video)),
      ),
    );
  }
  return { element: whole, show };
}

/**
 * @param {Parameters<typeof icon>[0]} sign
 * @param {string} label
 * @param {(() => Promise<void>) | null} run
 */
function button(sign, label, run) {
  return element(
    "button",
    {
      type: "button",
      class: "button quiet only-icon",
      title: label,
      "aria-label": label,
      disabled: run === null,
      on: { click: () => run?.() },
    },
    icon(sign),
  );
}

/**
 * Show a dialog that changes the fields of a waiting job.
 * @param {Video} video
 * @param {import("../../types.js").VideoModel} model
 * @param {(changes: Record<string, any>) => Promise<void>} send Function that changes the job.
 */
export function editDialog(video, model, send) {
  const fields = model.fields.filter((field) => field.type !== "picture");
  const form = modelForm(fields);
  form.set({ ...video.request, seed: video.seed });
  const before = form.values();
  const problem = element("div");
  const dialog = element(
    "dialog",
    {
      class: "dialog wide-form",
      "aria-labelledby": "edit-title",
      on: { close: () => (form.close(), dialog.remove()) },
    },
    element(
      "form",
      { class: "stack", noValidate: true, on: { submit } },
      element("h2", { id: "edit-title" }, words.editTitle),
      form.element,
      problem,
      element(
        "div",
        { class: "row end" },
        element(
          "button",
          { type: "button", class: "button", on: { click: () => dialog.close() } },
          texts.common.cancel,
        ),
        element("button", { type: "submit", class: "button primary" }, words.save),
      ),
    ),
  );
  /** @param {SubmitEvent} event */
  async function submit(event) {
    event.preventDefault();
    if (!form.check()) return;
    const after = form.values();
    const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
    const changed = names.filter((name) => before[name] !== after[name]);
    // A field that the user has emptied gets its usual value.
    const changes = Object.fromEntries(changed.map((name) => [name, after[name] ?? null]));
    try {
      if (changed.length) await send(changes);
      dialog.close();
    } catch (error) {
      if (!form.refuse(error)) replace(problem, errorNote(error));
    }
  }
  document.body.append(dialog);
  dialog.showModal();
}
