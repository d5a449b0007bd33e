// @ts-check
/** A place for one file: drop it, paste it, choose it, or take a picture with the camera. */

import { announce, element, icon, replace } from "../dom.js";
import { texts } from "../texts.js";
import { button as plainButton } from "./parts.js";

const words = texts.common.file;

/** @typedef {import("../types.js").FileDropOptions} FileDropOptions */

/** @typedef {import("../types.js").FileDrop} FileDrop */

/** Make a place for a file. @param {FileDropOptions} options @returns {FileDrop} */
export function fileDrop({
  label,
  hint = words.drop,
  accept = "",
  camera = false,
  paste = false,
  passOn = false,
  onFile,
}) {
  /** @type {File | null} */
  let chosen = null;
  let url = "";
  /** @type {MediaStream | null} */
  let stream = null;
  const input = element("input", {
    type: "file",
    accept,
    class: "visually-hidden",
    tabIndex: -1,
    "aria-hidden": "true",
  });
  const place = element("div", { class: "drop", role: "group", "aria-label": label });
  const problem = element("p", { class: "field-error", role: "alert", hidden: true });
  const whole = element("div", { class: "stack tight" }, place, input, problem);

  /** @param {File | null} file @param {boolean} tell */
  function take(file, tell) {
    endCamera();
    problem.hidden = true;
    if (file && !fits(file, accept)) {
      problem.textContent = words.wrongKind(accept);
      problem.hidden = false;
      return;
    }
    chosen = file;
    if (file) announce(words.chosen(file.name));
    show();
    if (tell) onFile?.(file);
  }

  function show() {
    if (url) URL.revokeObjectURL(url);
    url = chosen && chosen.type.startsWith("image/") ? URL.createObjectURL(chosen) : "";
    place.classList.toggle("full", chosen !== null);
    const choose = button("upload", words.choose, () => input.click());
    if (!chosen) {
      const shoot = camera && navigator.mediaDevices ? button("camera", words.camera, startCamera) : null;
      replace(
        place,
        icon(accept.startsWith("image") ? "picture" : "upload"),
        element("p", {}, hint),
        row(choose, shoot),
      );
      return;
    }
    const remove = button(
      "close",
      words.remove,
      () => (take(null, true), place.querySelector("button")?.focus()),
    );
    replace(
      place,
      url ? element("img", { class: "drop-preview", src: url, alt: words.chosen(chosen.name) }) : null,
      element("p", { class: "one-line drop-name" }, chosen.name),
      row(choose, remove),
    );
  }

  async function startCamera() {
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      problem.textContent = words.noCamera;
      problem.hidden = false;
      return;
    }
    const video = element("video", { class: "drop-video", autoplay: true, muted: true, playsInline: true });
    video.srcObject = stream;
    const shoot = button("camera", words.takePicture, async () =>
      take(await opaque(video, video.videoWidth, video.videoHeight, "camera.png"), true),
    );
    replace(
      place,
      video,
      row(
        shoot,
        button("close", texts.common.cancel, () => (endCamera(), show())),
      ),
    );
    shoot.focus();
  }

  function endCamera() {
    stream?.getTracks().forEach((track) => track.stop());
    stream = null;
  }

  /** @param {ClipboardEvent} event */
  async function pasted(event) {
    const file = [...(event.clipboardData?.files ?? [])].find((each) => fits(each, accept));
    if (!file || !whole.isConnected) return;
    event.preventDefault();
    take(await withoutAlpha(file), true);
  }

  input.addEventListener(
    "change",
    () => (input.files?.[0] && take(input.files[0], true), (input.value = "")),
  );
  place.addEventListener("dragover", (event) => (event.preventDefault(), place.classList.add("over")));
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    place.classList.remove("over");
    const file = event.dataTransfer?.files[0];
    if (!file || (passOn && !fits(file, accept))) return;
    event.stopPropagation();
    take(file, true);
  });
  if (paste) document.addEventListener("paste", pasted);
  show();
  return {
    element: whole,
    file: () => chosen,
    set: (file) => take(file, false),
    close: () => {
      endCamera();
      document.removeEventListener("paste", pasted);
      if (url) URL.revokeObjectURL(url);
    },
  };
}

/**
 * Return true if a file has one of the types of an `accept` list; an empty list takes every file.
 * @param {File} file
 * @param {string} accept
 * @returns {boolean}
 */
export function fits(file, accept) {
  const kinds = accept.split(",").map((kind) => kind.trim().toLowerCase());
  return kinds.some((kind) => {
    if (kind === "") return true;
    if (kind.startsWith(".")) return file.name.toLowerCase().endsWith(kind);
    return kind.endsWith("/*") ? file.type.startsWith(kind.slice(0, -1)) : file.type === kind;
  });
}

/**
 * Return a picture of the camera, or a pasted one, as a PNG file without an alpha channel, which no model takes.
 *
 * @param {HTMLVideoElement | ImageBitmap} source @param {number} width @param {number} height @param {string} name
 * @returns {Promise<File | null>}
 */
async function opaque(source, width, height, name) {
  const canvas = element("canvas", { width, height });
  canvas.getContext("2d", { alpha: false })?.drawImage(source, 0, 0);
  /** @type {Blob | null} */
  const blob = await new Promise((resolve) => {
    canvas.toBlob(resolve, "image/png");
  });
  return blob ? new File([blob], name, { type: "image/png" }) : null;
}

/**
 * Return a picture without its alpha channel if nothing of it is transparent, as of screenshots.
 *
 * @param {File} file
 * @returns {Promise<File>}
 */
async function withoutAlpha(file) {
  if (file.type !== "image/png") return file;
  const bitmap = await createImageBitmap(file).catch(() => null);
  const context =
    bitmap && element("canvas", { width: bitmap.width, height: bitmap.height }).getContext("2d");
  if (!bitmap || !context) return file;
  const { width, height } = bitmap;
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  for (let at = 3; at < data.length; at += 4) if (data[at] < 255) return file;
  return (await opaque(bitmap, width, height, file.name)) ?? file;
}

/**
 * Return the picture that comes with a checkpoint, or null.
 * @param {import("../types.js").FieldDescription | undefined} field
 */
export function examplePicture(field) {
  if (!field?.example) return null;
  const bytes = Uint8Array.from(atob(field.example), (character) => character.charCodeAt(0));
  return new File([bytes], "example.png", { type: "image/png" });
}

/** @param {import("./parts.js").Sign} sign @param {string} label @param {() => void} click */
function button(sign, label, click) {
  return plainButton(sign, label, click, "small");
}

/** @param {(HTMLElement | null)[]} buttons */
function row(...buttons) {
  return element("div", { class: "row center" }, buttons);
}
