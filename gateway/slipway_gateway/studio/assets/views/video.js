// @ts-check
/** The view "video": make a video from a sentence or a picture, watch it appear, keep the good ones. */

import { announce, element, icon, replace } from "../dom.js";
import { errorNote, note } from "../elements/error-note.js";
import { randomSeed } from "../elements/controls.js";
import { button } from "../elements/parts.js";
import { texts } from "../texts.js";
import { compareDialog } from "./video/compare.js";
import { contents } from "./video/contents.js";
import { draftSheet } from "./video/drafts.js";
import { gallery } from "./video/gallery.js";
import { isActive, jobs } from "./video/jobs.js";
import { editDialog, queue } from "./video/queue.js";
import { requestCard } from "./video/request.js";
import { promptOf, stage } from "./video/stage.js";

/** @typedef {import("../types.js").Model} Model */
/** @typedef {import("../types.js").Video} Video */

const words = texts.video;

/** @param {Model[]} models */
const withVideo = (models) => models.filter((model) => model.video !== null);

/** @type {import("../types.js").View} */
export const view = { id: "video", label: words.label, icon: "video", models: withVideo, build };

/** @param {import("../types.js").Context} context @returns {import("../types.js").BuiltView} */
function build({ api, models }) {
  let served = withVideo(models);
  /** @type {string | null} */
  let chosen = null;
  /** @type {Video | null} */
  let compared = null;
  const files = contents(api);
  const problems = element("div");
  const comparing = element("div");
  const connection = element("div");
  const known = jobs(api, changed, (error) => replace(connection, error === null ? null : errorNote(error)));
  const request = requestCard(served, create, created);
  const main = stage({
    files,
    act,
    canStop: (id) => served.find((model) => model.id === id)?.video?.can_stop ?? false,
  });
  const cards = gallery({ files, choose, more: () => known.more() });
  const waiting = queue({ move, edit, duplicate, remove: (video) => remove([video]) });
  const sheet = draftSheet({ files, resume, remove, choose });
  const whole = element(
    "div",
    { class: "view columns video-view" },
    request.element,
    element(
      "div",
      { class: "stack video-side" },
      connection,
      problems,
      comparing,
      main.element,
      sheet.element,
      waiting.element,
    ),
    element("div", { class: "video-history" }, cards.element),
  );
  const over = element("div", { class: "drop-page", hidden: true }, icon("upload"), words.dropFile);
  whole.append(over);

  /** @param {Video | null} one Job that alone has changed. */
  function changed(one) {
    const all = known.all();
    if (chosen === null || !known.get(chosen)) chosen = (all.find(isActive) ?? all[0])?.id ?? null;
    known.follow(chosen);
    if (!one || one.id === chosen) main.show(chosen === null ? null : (known.get(chosen) ?? null));
    cards.show(all, chosen, known.hasMore());
    waiting.show(all);
    sheet.show(known.get);
  }

  /** @param {Video} video */
  function choose(video) {
    if (compared && compared.id !== video.id && video.status === "completed") {
      compareDialog(compared, video, files);
      compare(null);
      return;
    }
    chosen = video.id;
    changed(null);
    main.element.scrollIntoView({ block: "nearest" });
  }

  /** @param {string} model @param {Record<string, any>} values @returns {Promise<Video>} */
  async function create(model, values) {
    // Each click asks for a video of its own, even with the same fields.
    const headers = { "idempotency-key": `studio-${randomSeed()}-${randomSeed()}` };
    const picture = Object.values(values).some((value) => value instanceof File);
    if (!picture) return api.post("/v1/videos", { model, ...values }, { headers });
    const form = new FormData();
    form.set("model", model);
    for (const [name, value] of Object.entries(values)) {
      form.set(name, value instanceof File ? value : String(value));
    }
    return api.form("/v1/videos", form, { headers });
  }

  /** @param {Video[]} videos @param {boolean} areDrafts */
  function created(videos, areDrafts) {
    chosen = videos[0].id;
    videos.forEach((video) => known.put(video));
    if (areDrafts) sheet.begin(videos.map((video) => video.id));
    changed(null);
    announce(words.queued);
    (areDrafts ? sheet.element : main.element).scrollIntoView({ block: "nearest" });
  }

  /** @param {import("./video/stage.js").Action} action @param {Video} video */
  async function act(action, video) {
    if (action === "use") return use(video);
    if (action === "compare") return compare(video);
    await attempt(async () => {
      if (action === "cancel" || action === "delete") await remove([video]);
      else if (action === "duplicate") await duplicate(video);
      else if (action === "resume") await resume(video);
      else if (action === "pause") known.put(await api.post(`/v1/videos/${video.id}/pause`));
      else if (action === "again") {
        created([await api.post(`/v1/videos/${video.id}/remix`, { seed: randomSeed() })], false);
      }
    });
  }

  /** @param {() => Promise<void>} run */
  async function attempt(run) {
    replace(problems);
    try {
      await run();
    } catch (error) {
      replace(problems, errorNote(error));
    }
  }

  /** @param {Video} video */
  async function resume(video) {
    await attempt(async () => {
      known.put(await api.post(`/v1/videos/${video.id}/resume`, {}));
      chosen = video.id;
      changed(null);
    });
  }

  /** @param {Video[]} videos */
  async function remove(videos) {
    await attempt(async () => {
      for (const video of videos) {
        await api.remove(`/v1/videos/${video.id}`);
        known.drop(video.id);
        files.drop(video.id);
      }
    });
  }

  /** @param {Video} video @param {Video} before */
  async function move(video, before) {
    await attempt(async () => {
      await api.patch(`/v1/videos/${video.id}`, { before: before.id });
      await known.refresh();
    });
  }

  /** @param {Video} video */
  async function duplicate(video) {
    await attempt(async () => known.put(await api.post(`/v1/videos/${video.id}/duplicate`, {})));
  }

  /** @param {Video} video */
  async function edit(video) {
    const model = served.find((each) => each.id === video.model)?.video;
    if (!model) return;
    editDialog(video, model, async (changes) =>
      known.put(await api.patch(`/v1/videos/${video.id}`, changes)),
    );
  }

  /** @param {Video} video */
  async function use(video) {
    const values = { ...video.request, seed: video.seed };
    if (!request.fill(video.model, values)) {
      replace(problems, errorNote(words.notServed(video.model)));
      return;
    }
    await attempt(async () => {
      for (const [name, value] of Object.entries(video.request)) {
        if (!value?.content) continue;
        const field = value.content === "input" ? "input_reference" : name;
        request.fill(video.model, { [field]: await files.picture(video.id, value.content) });
      }
    });
    request.element.scrollIntoView({ block: "start" });
  }

  /** @param {Video | null} video */
  function compare(video) {
    compared = video;
    const stop = button(null, texts.common.cancel, () => compare(null), "small");
    replace(
      comparing,
      video &&
        element(
          "div",
          { class: "note", role: "status" },
          icon("compare"),
          element("p", { class: "grow" }, words.pickOther(promptOf(video))),
          stop,
        ),
    );
    whole.classList.toggle("is-comparing", video !== null);
  }

  /** @param {File} file */
  async function restore(file) {
    const form = new FormData();
    form.set("file", file);
    try {
      const found = await api.form("/v1/videos/settings", form);
      const model = found.model || served[0].id;
      if (!request.fill(model, found.request)) return request.say(errorNote(words.notServed(model)));
      request.say(note(words.restored(file.name)));
      announce(words.restored(file.name));
    } catch (error) {
      if (file.type.startsWith("image/") && request.picture(file)) return;
      request.say(errorNote(error));
    }
  }

  /** @param {DragEvent} event */
  function drag(event) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    over.hidden = event.type !== "dragover";
    const file = event.type === "drop" ? event.dataTransfer.files[0] : null;
    if (file) restore(file);
  }

  const stop = new AbortController();
  for (const name of /** @type {const} */ (["dragover", "drop"])) {
    addEventListener(name, drag, { signal: stop.signal });
  }
  addEventListener("drop", () => (over.hidden = true), { signal: stop.signal, capture: true });
  addEventListener("dragleave", (event) => event.relatedTarget === null && (over.hidden = true), {
    signal: stop.signal,
  });
  return {
    element: whole,
    update(next) {
      served = withVideo(next);
      request.update(served);
    },
    close() {
      stop.abort();
      known.close();
      main.close();
      request.close();
      files.close();
    },
  };
}
