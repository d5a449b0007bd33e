// @ts-check
/** Jobs that wait, in the order in which they will run; each can be moved, changed, copied and removed. */

import { element, replace } from "../../dom.js";
import { errorNote } from "../../elements/error-note.js";
import { modelForm } from "../../elements/model-form.js";
import { button, dialog, iconButton, section } from "../../elements/parts.js";
import { texts } from "../../texts.js";
import { promptOf } from "./stage.js";

/** @typedef {import("../../types.js").Video} Video */

const words = texts.video.queue;

/** @typedef {import("../../types.js").QueueOptions} QueueOptions */

/**
 * Make the queue. It is hidden while no job waits.
 * @param {QueueOptions} options
 * @returns {{element: HTMLElement, show: (videos: Video[]) => void}}
 */
export function queue({ move, edit, duplicate, remove }) {
  const list = element("ol", { class: "queue" });
  const whole = section(words.title, list);
  whole.hidden = true;
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
    const focused = list.contains(document.activeElement) ? document.activeElement : null;
    const name = focused?.getAttribute("aria-label");
    replace(
      list,
      waiting.map((video, index) => row(video, waiting[index - 1], waiting[index + 1])),
    );
    // A job that was moved keeps the focus; at an end of the queue it can only be moved back.
    const buttons = [...list.querySelectorAll("button")];
    const same = buttons.find((each) => each.getAttribute("aria-label") === name);
    const next = buttons.find((each) => !each.disabled && each.parentElement === same?.parentElement);
    if (focused) (same?.disabled ? next : same)?.focus();
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
        quiet("up", words.up(name), before ? () => move(video, before) : null),
        quiet("down", words.down(name), after ? () => move(after, video) : null),
        quiet("edit", words.edit(name), () => edit(video)),
        quiet("copy", words.duplicate(name), () => duplicate(video)),
        quiet("trash", words.remove(name), () => remove(video)),
      ),
    );
  }
  return { element: whole, show };
}

/**
 * @param {import("../../elements/parts.js").Sign} sign
 * @param {string} label
 * @param {(() => Promise<void>) | null} run
 */
function quiet(sign, label, run) {
  const made = iconButton(sign, label, () => run?.());
  made.classList.add("quiet");
  made.disabled = run === null;
  return made;
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
  const content = element(
    "form",
    { class: "stack", noValidate: true, on: { submit } },
    form.element,
    problem,
    element("div", { class: "row end" }, button(null, words.save, null, "primary")),
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
      shown.close();
    } catch (error) {
      if (!form.refuse(error)) replace(problem, errorNote(error));
    }
  }
  const shown = dialog(words.editTitle, "wide-form", content, form.close);
}
