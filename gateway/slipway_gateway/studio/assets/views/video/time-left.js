// @ts-check
/** Time that a job will still take, from the times at which its steps ended. */

const REMEMBERED = 6;

/**
 * Make an estimate that is fed with steps.
 * @returns {{add: (step: number) => void, left_s: (steps: number) => number | null}}
 */
export function timeLeft() {
  /** @type {{step: number, at_ms: number}[]} */
  let seen = [];
  return {
    add(step) {
      const last = seen.at(-1);
      if (last && step === last.step) return;
      if (last && step < last.step) seen = [];
      seen = [...seen, { step, at_ms: performance.now() }].slice(-REMEMBERED);
    },
    left_s(steps) {
      const first = seen[0];
      const last = seen.at(-1);
      if (!first || !last || last.step === first.step) return null;
      const each_ms = (last.at_ms - first.at_ms) / (last.step - first.step);
      // The step that runs has begun when the last one ended.
      return Math.max(0, (last.at_ms + (steps - last.step) * each_ms - performance.now()) / 1000);
    },
  };
}

/** Return a duration in words. @param {number} seconds @returns {string} */
export function duration(seconds) {
  if (seconds < 59.5) return `${seconds < 10 && seconds % 1 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
