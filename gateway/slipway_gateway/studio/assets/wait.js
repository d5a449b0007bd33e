// @ts-check

/** Wait. @param {number} time_ms @returns {Promise<void>} */
export function wait(time_ms) {
  return new Promise((resolve) => {
    setTimeout(resolve, time_ms);
  });
}
