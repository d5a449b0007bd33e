// @ts-check
/**
 * Every English text of the studio: one object for a view, and `common` for the page and the shared parts.
 * A text with values is a function of them.
 */

export const texts = {
  common: {
    title: "Slipway Studio",
    cancel: "Cancel",
    close: "Close",
    download: "Download",
    loading: "Loading …",
    more: "More settings",
    unreachable: "The gateway does not answer. The page tries again by itself.",
    failed: "Something went wrong.",
    noModels: {
      title: "No model is served yet",
      text: "The page shows its views as soon as a server has loaded its models.",
      known: "Slipway looks again every few seconds.",
    },
    key: {
      title: "A key is needed",
      text: "The operator of this gateway makes keys with:",
      command: "slipway gateway keys create NAME",
      label: "Key",
      enter: "Enter a key",
      send: "Use this key",
      wrong: "The gateway does not know this key, or it was revoked.",
      kept: "The key stays in this tab until you close it.",
    },
    /** @param {number} ready @param {number} all */
    models: (ready, all) => (ready === all ? `${ready} models ready` : `${ready} of ${all} models ready`),
    offline: "No connection",
    file: {
      choose: "Choose a file",
      drop: "Drop a file here, paste it, or choose one",
      dropPicture: "Drop a picture here, paste it, or choose one",
      camera: "Use the camera",
      takePicture: "Take the picture",
      remove: "Remove the file",
      noCamera: "The camera cannot be used. Allow it in the settings of your browser, or choose a file.",
      /** @param {string} name */
      chosen: (name) => `Chosen: ${name}`,
      /** @param {string} kinds */
      wrongKind: (kinds) => `This file has another type. Please choose one of: ${kinds}.`,
    },
    form: {
      required: "Please fill this in.",
      number: "Please give a number.",
      whole: "Please give a whole number.",
      /** @param {string} range */
      range: (range) => `Please give a value of ${range}.`,
      /** @param {number} low @param {number} high */
      between: (low, high) => `${low} to ${high}`,
      /** @param {number} length_s */
      length: (length_s) => `${length_s.toFixed(1)} s long`,
      /** @param {string} text */
      forExample: (text) => `For example: ${text}`,
      random: "random",
      newSeed: "New random seed",
      picture: "Please give a picture.",
      names: {
        input_reference: "First picture",
        last_image: "Last picture",
        fps: "Frames per second",
        frames: "Frames",
        seconds: "Length",
        timeout_s: "Time limit",
        guidance_scale: "Guidance",
        guidance_scale_2: "Guidance of the second denoiser",
      },
      size: "Size",
      width: "Width",
      height: "Height",
      usual: "model's choice",
    },
    plot: {
      table: "Show as a table",
    },
  },
  video: {
    label: "Video",
    queued: "The video is queued.",
    statuses: {
      queued: "Waiting",
      in_progress: "Working",
      paused: "Paused",
      completed: "Finished",
      failed: "Failed",
      cancelled: "Cancelled",
    },
    dropFile: "Drop a video or a picture: its settings fill in the form",
    pictureName: "picture of the video",
    /** @param {string} name */
    restored: (name) => `The form has the settings of ${name}.`,
    /** @param {string} model */
    notServed: (model) => `The model ${model} is not served here.`,
    /** @param {string} prompt */
    pickOther: (prompt) => `Choose a finished video below to compare with “${prompt}”.`,
    request: {
      label: "New video",
      title: "New video",
      model: "Model",
      make: "Make the video",
      example: "Fill in an example",
      /** @param {number} count */
      drafts: (count) => `Try ${count} seeds as drafts`,
      /** @param {string} model */
      notReady: (model) => `${model} (not ready)`,
      waits: "No server is ready with this model now. A video waits until one is.",
    },
    stage: {
      label: "Chosen video",
      progress: "Progress of the video",
      preview: "The video as it is now",
      empty: "Your video appears here, step by step.",
      waiting: "Waiting for a free place",
      begins: "The first picture comes soon",
      /** @param {number} place */
      position: (place) => (place === 1 ? "Next in the queue" : `Place ${place} in the queue`),
      /** @param {string} phase */
      phase: (phase) => phase.charAt(0).toUpperCase() + phase.slice(1).replaceAll("_", " "),
      /** @param {number} step @param {number} steps */
      step: (step, steps) => `step ${step} of ${steps}`,
      /** @param {string} time */
      left: (time) => `about ${time} left`,
      actions: {
        cancel: "Cancel",
        delete: "Delete",
        pause: "Pause",
        resume: "Resume",
        again: "Again with a new seed",
        use: "Use these settings",
        compare: "Compare",
        duplicate: "Duplicate",
      },
      /** @param {{size: string, seconds: string}} video */
      size: ({ size, seconds }) => `${size.replace("x", " × ")} px, ${Number(seconds).toFixed(1)} s`,
      facts: { model: "Model", seed: "Seed", size: "Size", steps: "Steps", time: "Computed in" },
    },
    gallery: {
      title: "Your videos",
      label: "Videos",
      search: "Search prompts and seeds",
      status: "Which videos",
      filters: {
        all: "All",
        active: "Waiting and working",
        paused: "Paused",
        completed: "Finished",
        failed: "Failed",
      },
      /** @param {{size: string, seconds: string, seed: number}} video */
      note: ({ size, seconds, seed }) =>
        `${size.replace("x", " × ")} · ${Number(seconds).toFixed(1)} s · seed ${seed}`,
      none: "Videos that you make are kept here for a day.",
      noMatch: "No video fits the search.",
      more: "Show older videos",
    },
    drafts: {
      title: "Drafts",
      help: "Each draft stopped early. Continue those that you like. “Done” deletes the others.",
      finish: "Done",
      resume: "Continue",
      open: "Show",
      /** @param {number} seed */
      seed: (seed) => `Draft with seed ${seed}`,
      /** @param {{seed: number, status: string, step: number, steps: number}} video */
      state: ({ seed, status, step, steps }) =>
        status === "in_progress" ? `seed ${seed}, step ${step} of ${steps}` : `seed ${seed}`,
    },
    queue: {
      title: "Queue",
      /** @param {{model: string, seed: number, steps: number}} video */
      note: ({ model, seed, steps }) => `${model} · seed ${seed} · ${steps} steps`,
      /** @param {string} name */
      up: (name) => `Move up: ${name}`,
      /** @param {string} name */
      down: (name) => `Move down: ${name}`,
      /** @param {string} name */
      edit: (name) => `Change: ${name}`,
      /** @param {string} name */
      duplicate: (name) => `Duplicate: ${name}`,
      /** @param {string} name */
      remove: (name) => `Remove: ${name}`,
      editTitle: "Change the waiting video",
      save: "Save",
    },
    compare: {
      title: "Compare two videos",
      left: "First video",
      right: "Second video",
      difference: "Difference",
      frame: "Frame",
      gain: "Strength of the difference",
      /** @param {number} gain */
      times: (gain) => `× ${gain}`,
      play: "Play",
      pause: "Pause",
      curve: "Similarity of each frame",
      psnr: "PSNR, dB",
      /** @param {number} frame @param {number} count */
      at: (frame, count) => `Frame ${frame} of ${count}`,
      /** @param {number} db */
      db: (db) => `PSNR ${db.toFixed(1)} dB`,
      equal: "equal",
      allEqual: "All frames are equal.",
      /** @param {number} mean @param {number} least */
      mean: (mean, least) => `PSNR ${mean.toFixed(1)} dB on average, ${least.toFixed(1)} dB at least`,
      otherSize: "The videos differ in size, so there is no difference to show.",
      /** @param {{model: string, seed: number, steps: number, inference_time_s: number | null}} video */
      caption: ({ model, seed, steps, inference_time_s: time_s }) =>
        `${model}, seed ${seed}, ${steps} steps${time_s === null ? "" : `, ${time_s.toFixed(1)} s`}`,
    },
  },
  world: {
    label: "World",
    model: "World",
    picture: "The world as it is now",
    hint: "Hold a key, a button of the pad with a finger or the mouse, or use a gamepad.",
    connecting: "Connecting …",
    making: "The first frames are being made …",
    restoring: "The saved world is being sent …",
    lost: "The connection was lost. The world waits for it to come back.",
    moving: "The world moves to another server …",
    broken: "The connection ended. Please begin a new world.",
    atEnd: "The world has come to its end.",
    save: "Save",
    saveText: "A saved world is a file. You can go on from it later, on another machine too.",
    saved: "The world is saved as a file.",
    stop: "End",
    /** @param {string} side */
    look: (side) => `look ${side}`,
    /** @param {string} control */
    group: (control) => control.replaceAll("_", " "),
    /** @param {string} label */
    hold: (label) => `Hold: ${label}`,
    /** @param {string} label @param {string[]} keys */
    holdByKey: (label, keys) => `${label} (key ${keys.join(" or ")})`,
    /** @param {number} position @param {number} depth */
    inLine: (position, depth) =>
      `All worlds are taken. You are number ${position} of ${depth} in line, and begin by yourself.`,
    keys: { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", Space: "Space" },
    start: {
      title: "Begin a world",
      text: "A picture becomes a world. You move through it with the keyboard, by touch, or with a gamepad.",
      start: "Begin",
      picture: "First picture",
      pictureHint: "Drop a picture of your own here, paste it, or choose one",
      example: "The picture that comes with this checkpoint is chosen.",
      seed: "Seed",
      newSeed: "New random seed",
      fps: "Frames per second",
      restore: "Saved world",
      restoreText: "Go on from a file that you saved before.",
      restoreChoose: "Open a saved world",
    },
    meters: {
      title: "Speed",
      rate: "Frames shown",
      reaction: "From key to picture",
      block: "Last block",
      left: "Time that is left",
      frames: "Frames so far",
      dropped: "Frames left out",
      latency: "Time for each block",
      noEnd: "no end",
      none: "No block is complete yet.",
      /** @param {number} rate @param {number} wanted */
      perSecond: (rate, wanted) => `${rate.toFixed(rate < 10 ? 1 : 0)} of ${wanted} fps`,
      /** @param {number} value_s */
      seconds: (value_s) => (value_s < 1 ? `${Math.round(value_s * 1000)} ms` : `${value_s.toFixed(2)} s`),
      /** @param {number} value_s */
      clock: (value_s) =>
        `${Math.floor(value_s / 60)}:${String(Math.floor(value_s % 60)).padStart(2, "0")} min`,
      /** @param {number} count @param {number} mean_s */
      average: (count, mean_s) =>
        `Mean of the last ${count === 1 ? "block" : `${count} blocks`}: ${Math.round(mean_s * 1000)} ms`,
      /** @param {string} name */
      part: (name) =>
        ({
          denoise: "Denoising",
          decode: "Decoding",
          commit: "Updating the window",
          picture: "First picture",
          other: "Waiting and sending",
        })[name] ?? name,
    },
  },
  listen: {
    label: "Listen",
    title: "Say a word",
    text: "The page listens for the words of the server, and shows how sure it is of each of them.",
    start: "Use the microphone",
    stop: "Stop listening",
    level: "Level of the microphone, in decibels",
    connecting: "Connecting …",
    listening: "Listening. Say a word, with half a second of silence before and after it.",
    reading: "The file is being read …",
    sending: "The file is being heard …",
    file: "A recording",
    fileHint: "Drop a recording here, or choose one",
    player: "The recording",
    curve: "Probability of each word",
    time: "Time in s",
    word: "Word",
    probability: "Probability",
    detections: "Detections",
    newWord: {
      title: "Add a word",
      text: "Record a word and other sounds. The server trains the word, and then listens for it.",
      name: "Word",
      example: "hey robot",
      recording: "Recording",
      train: "Train the word",
      clear: "Delete the recordings",
      kinds: { positive: "The word", negative: "Other sounds" },
      record: { positive: "Record it 10 times", negative: "Record 36 s" },
      files: { positive: "Recordings of the word", negative: "Recordings of other sounds" },
      say: {
        /** @param {number} take @param {number} count @param {string} word */
        positive: (take, count, word) => `Say “${word || "the word"}” once, now (${take} of ${count})`,
        /** @param {number} take @param {number} count */
        negative: (take, count) => `Say anything else, or make noises (${take} of ${count})`,
      },
      states: { queued: "The training waits for another one.", running: "The word is being trained …" },
      /** @param {number} count @param {number} fewest */
      count: (count, fewest) => (count < fewest ? `${count} of at least ${fewest}` : `${count} recordings`),
      /** @param {string} word */
      ready: (word) => `The server listens for “${word}” now. Use the microphone to try it.`,
    },
    noDetection: "Nothing is detected yet. A dashed line is the threshold of its word.",
    noMicrophone:
      "The microphone cannot be used. Allow it in the settings of your browser, or choose a recording.",
    broken: "The connection ended. Please begin again.",
    /** @param {string} name */
    noSound: (name) => `${name} cannot be read as sound. Please choose a WAV, MP3, Ogg, FLAC or M4A file.`,
    /** @param {string} word */
    heard: (word) => `Heard “${word}”`,
    /** @param {string} name @param {number} threshold */
    line: (name, threshold) => `${name} (threshold ${threshold.toFixed(2)})`,
    /** @param {number} position @param {number} depth */
    inLine: (position, depth) => `All sessions are taken. You are number ${position} of ${depth} in line.`,
    /** @param {number} seconds @param {number} count */
    done: (seconds, count) =>
      `${seconds.toFixed(1)} s were heard, with ${count === 1 ? "one detection" : `${count} detections`}.`,
  },
  motion: {
    label: "Motion",
    title: "Correct a motion sensor",
    text: "A sensor's small errors add up to metres. The model learns them while the sensor rests, and removes them.",
    example: "Try a made recording",
    signals: "Recording",
    signalsHint: "Drop a recording (CSV, npz or JSON) here, or choose one",
    truth: "Ground truth (optional)",
    truthHint: "Drop the true path (CSV) here, to see the errors",
    units: "Units of a CSV file",
    rate: "Rate of rotation",
    acceleration: "Acceleration",
    fromFile: "as the file says",
    part: "Part that is shown",
    start: "Begins after",
    length: "Length",
    loading: "The recording is being loaded …",
    correcting: "The recording is being corrected …",
    nothing: "The paths before and after the correction appear here.",
    paths: "Path of the sensor",
    side: "Direction of the view",
    above: "From above",
    fromSide: "From the side",
    play: "Play",
    stop: "Stop",
    distance: "Distance from the true place",
    fromStart: "Distance from the start",
    time: "Time in s",
    metres: "Distance in m",
    errors: "Errors",
    error: "Error",
    errorsText:
      "Both paths begin in the true place. The lower two rows begin anew there after every 200 frames.",
    corrections: "Corrections",
    correctionAcc: "Mean correction of the acceleration",
    correctionGyro: "Mean correction of the rotation",
    changed: "Change",
    names: { raw: "Raw", corrected: "Corrected", truth: "Truth" },
    errorNames: {
      ate_m: "Place, mean",
      aoe_deg: "Direction, mean",
      rte_m: "Place after 200 frames",
      roe_deg: "Direction after 200 frames",
    },
    /** @param {number} value_s */
    seconds: (value_s) => `${value_s} s`,
    /** @param {number} value @param {string} unit */
    value: (value, unit) =>
      unit === "m" && value < 0.1 ? `${(100 * value).toPrecision(2)} cm` : `${value.toPrecision(3)} ${unit}`,
    /** @param {number} share */
    change: (share) => `${share < 0 ? "−" : "+"}${Math.abs(100 * share).toFixed(0)} %`,
    /** @param {[number, number, number]} values @param {string} unit */
    vector: (values, unit) => `${values.map((value) => value.toFixed(4)).join(", ")} ${unit}`,
    /** @param {number} raw_m @param {number} corrected_m */
    better: (raw_m, corrected_m) =>
      `The corrected path is ${corrected_m.toPrecision(2)} m off on average, the raw one ${raw_m.toPrecision(2)} m.`,
    /** @param {number} frames */
    corrected: (frames) => `${frames.toLocaleString("en")} frames are corrected.`,
  },
  knownWords: {
    /** @param {number} number */
    title: (number) => `The ${number} words that this checkpoint knows`,
    /** @param {string[]} unknown */
    unknown: (unknown) =>
      unknown.length === 1
        ? `This checkpoint does not know the word “${unknown[0]}”. The video will not show it.`
        : `This checkpoint does not know the words ${unknown.map((word) => `“${word}”`).join(", ")}. The video will not show them.`,
  },
  fleet: {
    label: "Fleet",
    title: "Fleet",
    note: "Servers, models and the queue of all keys. The page looks again every two seconds.",
    adminNeeded:
      "Only a key that administers the gateway may look at the fleet. Ask the operator for: slipway gateway keys create NAME --admin",
    /** @param {number} ready @param {number} all */
    spoken: (ready, all) => `${ready} of ${all} servers are ready`,
    /** @param {number} some @param {number} all */
    of: (some, all) => `${some} of ${all}`,
    summary: {
      servers: "Servers ready",
      waiting: "Videos waiting",
      running: "Videos running",
      sessions: "Sessions open",
      failures: "Failures, last hour",
    },
    states: { ready: "ready", draining: "draining", unreachable: "unreachable" },
    /** @param {"ready" | "draining" | "unreachable"} state @param {number} ready @param {number} servers */
    stateOn: (state, ready, servers) =>
      state === "unreachable" ? "no server" : servers > 1 ? `${state} on ${ready} of ${servers}` : state,
    servers: {
      title: "Servers",
      processor: "Processor",
      memory: "Memory",
      unknown: "not reported",
      silent:
        "The server reports no load. Start the gateway with the port of its metrics: --triton-metrics-port",
      /** @param {number} number */
      models: (number) => `${number} models`,
      /** @param {string} id */
      gpu: (id) => `GPU ${id.replace(/^GPU-/, "").slice(0, 8)}`,
      /** @param {string} id */
      gpuMemory: (id) => `Memory of GPU ${id.replace(/^GPU-/, "").slice(0, 8)}`,
      /** @param {number} share */
      share: (share) => `${Math.round(100 * share)} %`,
      /** @param {number} share @param {number | null} power_w */
      gpuShare: (share, power_w) =>
        `${Math.round(100 * share)} %` + (power_w === null ? "" : `, ${Math.round(power_w)} W`),
      /** @param {number} used @param {number} total */
      bytes: (used, total) => `${(used / 2 ** 30).toFixed(1)} of ${(total / 2 ** 30).toFixed(1)} GiB`,
    },
    models: {
      work: "Work",
      workNote:
        "Models that callers ask for. Videos wait in the gateway's queue, worlds and microphones for a session.",
      networks: "Networks",
      networksNote:
        "Models that the others call, as they were exported. Parity is the largest difference from the checkpoint's own network, as a share of what is allowed.",
      noNetworks: "No server tells a network. Models tell it since they are exported with this version.",
      others: "Programs without a network",
      columns: {
        model: "Model",
        state: "State",
        waiting: "Waiting",
        running: "Running",
        sessions: "Sessions",
        failures: "Failed",
        engine: "Engine",
        precision: "Precision",
        parity: "Parity",
      },
      none: "–",
      untold: "–",
      /** @param {number} number @param {number | null} oldest_s */
      waiting: (number, oldest_s) =>
        number && oldest_s !== null ? `${number}, for ${timeOf(oldest_s)}` : String(number),
      /** @param {number} number @param {number} paused */
      running: (number, paused) => (paused ? `${number}, ${paused} paused` : String(number)),
      /** @param {number} open @param {number | null} limit */
      sessions: (open, limit) => (limit === null ? String(open) : `${open} of ${limit}`),
      /** @param {number} share */
      ofBound: (share) => `${Number((100 * share).toPrecision(2))} % of the bound`,
      /** @param {number} number */
      points: (number) => `${number} points`,
      /** @param {number} number */
      leftOut: (number) => `${number} not verified`,
      /** @param {{max_abs: number, relative_l2: number, cosine: number}} parity */
      differences: ({ max_abs, relative_l2, cosine }) =>
        `max ${max_abs.toExponential(1)}, relative L2 ${relative_l2.toExponential(1)}, 1 − cosine ` +
        (cosine < 1 ? (1 - cosine).toExponential(1) : "below 1e-9"),
    },
    failures: {
      title: "Failures of the last hour",
      none: "Nothing has failed in the last hour.",
      noText: "The failure has no text.",
      /** @param {number} number */
      times: (number) => `${number} times`,
      /** @param {number} time_s */
      ago: (time_s) => (time_s < 10 ? "just now" : `${timeOf(time_s)} ago`),
      /** @param {string} id */
      newest: (id) => `newest: ${id}`,
    },
  },
};

/** @param {number} time_s @returns {string} A time in one unit, as people say it. */
function timeOf(time_s) {
  if (time_s < 60) return `${Math.round(time_s)} s`;
  return time_s < 5400 ? `${Math.round(time_s / 60)} min` : `${Math.round(time_s / 3600)} h`;
}
