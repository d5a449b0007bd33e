// @ts-check
/** Cards of the servers: state, processor, memory and GPUs. */

import { element } from "../../dom.js";
import { texts } from "../../texts.js";
import { meter } from "./meter.js";
import { rows, say } from "./rows.js";

/** @typedef {import("../../types.js").Server} Server */
/** @typedef {import("../../types.js").Gpu} Gpu */

const words = texts.fleet.servers;
/** @type {Record<import("../../types.js").State, string>} */
export const KINDS = { ready: "good", draining: "waiting", unreachable: "bad" };

/**
 * Make the list of the servers.
 *
 * @returns {{element: HTMLElement, show: (servers: Server[]) => void}}
 */
export function serverList() {
  const list = element("ul", { class: "fleet-servers" });
  return { element: list, show: rows(list, (server) => server.url, serverCard) };
}

/** @param {Server} first @returns {import("./rows.js").Row<Server>} */
function serverCard(first) {
  const state = element("span", {});
  const models = element("p", { class: "muted small" });
  const reason = element("p", { class: "small fleet-reason" });
  const processor = meter(words.processor);
  const memory = meter(words.memory);
  const gpus = element("div", { class: "stack" });
  const showGpus = rows(gpus, (/** @type {Gpu} */ gpu) => gpu.id, gpuMeters);
  const loads = element("div", { class: "stack" }, processor.element, memory.element, gpus);
  const silent = element("p", { class: "muted small" }, words.silent);
  const made = element(
    "li",
    { class: "card stack" },
    element(
      "div",
      { class: "stack tight" },
      element("div", { class: "row between" }, element("h3", { class: "fleet-address" }, first.url), state),
      models,
      reason,
    ),
    loads,
    silent,
  );
  return {
    element: made,
    show(server) {
      state.className = `badge ${KINDS[server.state]}`;
      say(state, texts.fleet.states[server.state]);
      say(models, words.models(server.models));
      models.hidden = server.state === "unreachable";
      say(reason, server.reason);
      reason.hidden = !server.reason;
      const tells = server.processor_share !== null || server.memory_bytes !== null || server.gpus.length > 0;
      loads.hidden = !tells;
      silent.hidden = tells || server.state === "unreachable";
      if (!tells) return;
      processor.show(
        server.processor_share,
        server.processor_share === null ? words.unknown : words.share(server.processor_share),
      );
      showMemory(memory, server.memory_used_bytes, server.memory_bytes);
      showGpus(server.gpus);
    },
  };
}

/** @param {Gpu} first @returns {import("./rows.js").Row<Gpu>} */
function gpuMeters(first) {
  const work = meter(words.gpu(first.id));
  const memory = meter(words.gpuMemory(first.id));
  return {
    element: element("div", { class: "stack" }, work.element, memory.element),
    show(gpu) {
      work.show(gpu.share, gpu.share === null ? words.unknown : words.gpuShare(gpu.share, gpu.power_w));
      showMemory(memory, gpu.memory_used_bytes, gpu.memory_bytes);
    },
  };
}

/** @param {import("./meter.js").Meter} target @param {number | null} used @param {number | null} total */
function showMemory(target, used, total) {
  if (used === null || !total) target.show(null, words.unknown);
  else target.show(used / total, words.bytes(used, total));
}
