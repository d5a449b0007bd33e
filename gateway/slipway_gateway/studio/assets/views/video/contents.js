// @ts-check
/** Files of jobs as addresses for `<img>` and `<video>`. Each is downloaded once and freed with the view. */

import { texts } from "../../texts.js";

/** @typedef {"video" | "thumbnail" | "draft"} Variant */

/** @typedef {import("../../types.js").Contents} Contents */

const MOST = 120;

/** Keep files of jobs. @param {typeof import("../../api.js").api} api @returns {Contents} */
export function contents(api) {
  /** @type {Map<string, Promise<string>>} */
  const kept = new Map();
  let isClosed = false;

  /** @param {string} name */
  function free(name) {
    const found = kept.get(name);
    kept.delete(name);
    found?.then((url) => URL.revokeObjectURL(url)).catch(() => undefined);
  }

  return {
    url(id, variant) {
      const name = `${id}/${variant}`;
      let found = kept.get(name);
      if (!found) {
        found = api.blob(`/v1/videos/${id}/content?variant=${variant}`).then((blob) => {
          const url = URL.createObjectURL(blob);
          if (isClosed) URL.revokeObjectURL(url);
          return url;
        });
        found.catch(() => kept.delete(name));
        kept.set(name, found);
        const first = kept.keys().next().value;
        if (kept.size > MOST && first) free(first);
      }
      return found;
    },
    async picture(id, content) {
      const blob = await api.blob(`/v1/videos/${id}/content?variant=${content}`);
      return new File([blob], texts.video.pictureName, { type: "image/*" });
    },
    drop(id) {
      [...kept.keys()].filter((name) => name.startsWith(`${id}/`)).forEach(free);
    },
    close() {
      isClosed = true;
      [...kept.keys()].forEach(free);
    },
  };
}
