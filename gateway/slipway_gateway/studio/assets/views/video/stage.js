// @ts-check
/** The chosen job: its picture or video, how far it is, what can be done with it, and how it was made. */

import { announce, element, icon, replace } from "../../dom.js";
import { errorNote } from "../../elements/error-note.js";
import { button as plainButton } from "../../elements/parts.js";
import { progressBar } from "../../elements/progress-bar.js";
import { texts } from "../../texts.js";
import { isActive } from "./jobs.js";
import { duration, timeLeft } from "./time-left.js";

/** @typedef {import("../../types.js").Video} Video */
/** @typedef {"cancel" | "delete" | "pause" | "resume" | "again" | "use" | "compare" | "duplicate"} Action */

/** @typedef {import("../../types.js").StageOptions} StageOptions */

const words = texts.video.stage;

/**
 * Make the stage.
 * @param {StageOptions} options
 * @returns {{element: HTMLElement, show: (video: Video | null) => void, close: () => void}}
 */
export function stage({ files, act, canStop }) {
  const media = element("div", { class: "stage-media" });
  const bar = progressBar(words.progress);
  const line = element("p", { class: "stage-line number" });
  const actions = element("div", { class: "row stage-actions" });
  const details = element("div", { class: "stack tight" });
  const progress = element("div", { class: "stack tight" }, bar.element, line);
  const whole = element(
    "section",
    { class: "card stage stack", "aria-label": words.label },
    media,
    progress,
    actions,
    details,
  );
  /** @type {Video | null} */
  let shown = null;
  let showing = "";
  let told = "";
  let estimate = timeLeft();
  const clock = setInterval(() => shown?.status === "in_progress" && showLine(shown), 1000);

  /** @param {Video | null} video */
  function show(video) {
    if (video?.id !== shown?.id) estimate = timeLeft();
    const before = shown;
    shown = video;
    whole.classList.toggle("is-empty", video === null);
    progress.hidden = !video || !isActive(video);
    if (!video) {
      showing = told = "";
      replace(media, element("div", { class: "stage-empty" }, icon("video"), element("p", {}, words.empty)));
      replace(actions);
      replace(details);
      return;
    }
    if (video.status === "in_progress") estimate.add(video.step);
    showMedia(video);
    showLine(video);
    const about = JSON.stringify([video.id, video.status, video.request, video.seed]);
    if (about === told) return;
    told = about;
    replace(details, facts(video));
    if (before?.id !== video.id || before.status !== video.status) {
      const focused = actions.contains(document.activeElement) ? document.activeElement : null;
      replace(actions, buttons(video));
      if (focused instanceof HTMLElement) {
        const same =
          actions.querySelector(`[data-action="${focused.dataset.action}"]`) ?? actions.firstElementChild;
        if (same instanceof HTMLElement) same.focus();
      }
      if (before?.id === video.id) announce(`${texts.video.statuses[video.status]}. ${promptOf(video)}`);
    }
  }

  /** @param {Video} video */
  function showMedia(video) {
    const [width, height] = video.size.split("x").map(Number);
    media.style.setProperty("--aspect", `${width || 16} / ${height || 9}`);
    const hasDraft = video.status === "paused" && video.draft_step !== null;
    const what = video.preview && !hasDraft && video.status !== "completed" ? "preview" : video.status;
    const wanted = `${video.id}/${what}`;
    if (wanted.endsWith("/preview") && showing === wanted) {
      const image = media.querySelector("img");
      if (image) image.src = video.preview ?? "";
      return;
    }
    if (showing === wanted) return;
    showing = wanted;
    if (wanted.endsWith("/preview")) {
      replace(
        media,
        element("img", { class: "stage-picture stage-preview", src: video.preview, alt: words.preview }),
      );
    } else if (video.status === "completed") {
      showFile(video, "video");
    } else if (hasDraft) {
      showFile(video, "draft");
    } else if (video.error) {
      replace(media, errorNote(video.error.message));
    } else {
      const sign = video.status === "queued" ? "clock" : video.status === "paused" ? "pause" : "video";
      replace(
        media,
        element("div", { class: "stage-empty" }, icon(sign), element("p", {}, waitingText(video))),
      );
    }
  }

  /** @param {Video} video @param {"video" | "draft"} variant */
  async function showFile(video, variant) {
    const mine = showing;
    replace(media, element("div", { class: "stage-empty" }, element("p", {}, texts.common.loading)));
    try {
      const url = await files.url(video.id, variant);
      if (showing === mine) replace(media, player(url, promptOf(video)));
    } catch (error) {
      if (showing === mine) replace(media, errorNote(error));
    }
  }

  /** @param {Video} video */
  function showLine(video) {
    if (video.status === "queued") {
      bar.set(null, texts.video.statuses.queued);
      line.textContent = video.queue_position
        ? words.position(video.queue_position)
        : texts.video.statuses.queued;
      return;
    }
    const left_s = estimate.left_s(video.steps);
    const parts = [
      video.phase ? words.phase(video.phase) : texts.video.statuses.in_progress,
      words.step(video.step, video.steps),
      left_s === null || video.step >= video.steps ? null : words.left(duration(Math.ceil(left_s))),
    ];
    line.textContent = parts.filter(Boolean).join(" · ");
    bar.set(video.steps ? video.step / video.steps : null, line.textContent);
  }

  /** @param {Video} video @returns {HTMLElement[]} */
  function buttons(video) {
    const busy = isActive(video);
    const stops = canStop(video.model);
    /** @type {(HTMLElement | false)[]} */
    const found = [
      video.status === "paused" && button("resume", "play", "primary"),
      video.status === "completed" && link(video),
      busy && stops && button("pause", "pause"),
      !busy && button("again", "again"),
      button("use", "edit"),
      video.status === "completed" && button("compare", "compare"),
      busy ? button("cancel", "close", "danger") : button("delete", "trash", "danger"),
    ];
    return found.filter((each) => each !== false);
  }

  /** @param {Action} action @param {import("../../elements/parts.js").Sign} sign @param {string} [kind] */
  function button(action, sign, kind) {
    const made = plainButton(sign, words.actions[action], run, kind);
    made.dataset.action = action;
    async function run() {
      if (!shown) return;
      made.disabled = true;
      try {
        await act(action, shown);
      } finally {
        made.disabled = false;
      }
    }
    return made;
  }

  /** @param {Video} video */
  function link(video) {
    const made = element(
      "a",
      { class: "button primary", download: `${video.id}.mp4`, href: "#", "aria-disabled": true },
      icon("download"),
      texts.common.download,
    );
    files.url(video.id, "video").then(
      (url) => {
        made.href = url;
        made.removeAttribute("aria-disabled");
      },
      () => made.remove(),
    );
    return made;
  }

  show(null);
  return { element: whole, show, close: () => clearInterval(clock) };
}

/**
 * Make a player that repeats a video; where the user wants little motion, it waits to be started.
 * @param {string} url
 * @param {string} label
 * @returns {HTMLVideoElement}
 */
export function player(url, label) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  return element("video", {
    class: "stage-picture",
    src: url,
    controls: true,
    loop: true,
    muted: true,
    autoplay: !calm,
    playsInline: true,
    "aria-label": label,
  });
}

/** @param {Video} video @returns {string} */
export function promptOf(video) {
  return String(video.request.prompt || video.model);
}

/** @param {Video} video @returns {HTMLElement[]} */
function facts(video) {
  const pairs = [
    [words.facts.model, video.model],
    [words.facts.seed, String(video.seed)],
    [words.facts.size, words.size(video)],
    [words.facts.steps, String(video.steps)],
    video.inference_time_s === null ? null : [words.facts.time, duration(video.inference_time_s)],
  ];
  const known = pairs.filter((pair) => pair !== null);
  return [
    element("p", { class: "stage-prompt" }, promptOf(video)),
    element(
      "dl",
      { class: "stage-facts number" },
      known.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
    ),
  ];
}

/** @param {Video} video @returns {string} */
function waitingText({ status }) {
  if (status === "queued") return words.waiting;
  return status === "in_progress" ? words.begins : texts.video.statuses[status];
}
