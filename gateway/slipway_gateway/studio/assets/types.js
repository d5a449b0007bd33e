// @ts-check
/**
 * Types of what the gateway's API answers, and of what the studio's parts give to each other. This module has
 * no code; other modules name its types as `import("./types.js").Model`.
 */

/**
 * @typedef {object} FieldDescription One field of a model's request.
 * @property {string} name Name in the API.
 * @property {"string" | "integer" | "number" | "boolean" | "array" | "picture"} type Kind of the value.
 * @property {boolean} required True if a request must have the field.
 * @property {string} rule Rule of the value, as the second half of a sentence ("1 to 100").
 * @property {string} help Meaning, as a noun ("number of denoising steps").
 * @property {string | number | boolean | null} default Usual value of the served model.
 * @property {string} [default_text] Words about the default where it is not a value.
 * @property {string[]} [choices] All values that a text may have.
 * @property {number} [minimum] Smallest value.
 * @property {number} [maximum] Largest value.
 * @property {string[]} [known_words] Words that the checkpoint knows, if it knows few.
 * @property {string} [unit] Unit ("px", "s", "1/s").
 * @property {string} [example] Example that comes with the checkpoint; a picture is base64 text.
 */

/**
 * @typedef {object} VideoModel Description of a model that makes videos.
 * @property {string} summary One sentence.
 * @property {string} note Sentences of the checkpoint's makers; empty if there are none.
 * @property {string} family Name of the family.
 * @property {boolean} can_stop True if its videos can be paused and resumed.
 * @property {boolean} takes_size True if a request has width and height.
 * @property {FieldDescription[]} fields Fields in their order.
 */

/**
 * @typedef {object} WorldModel Description of a model whose sessions are worlds.
 * @property {string} summary One sentence.
 * @property {string} note Sentences of the checkpoint's makers; empty if there are none.
 * @property {string[]} formats Forms of the frames: "m4s", "jpeg".
 * @property {boolean} can_save True if a world can be saved and restored.
 * @property {boolean} continues True if a world goes on by itself where it would end.
 * @property {FieldDescription[]} fields Fields that begin a world.
 * @property {{name: string, columns: string[], minimum: number | null, maximum: number | null, help: string}[]}
 *   controls Arrays that steer it, with the names of their columns.
 */

/**
 * @typedef {object} Model A model of `GET /v1/models`.
 * @property {string} id Name of the served model.
 * @property {boolean} ready True if a server can work with the model now.
 * @property {number} replicas Number of servers that are ready with the model.
 * @property {VideoModel | null} video Fields of a model for videos; null for other models.
 * @property {WorldModel | null} world Fields and controls of a world; null for other models.
 * @property {string[]} routes Routes of the API that call the model.
 */

/**
 * @typedef {object} Video A job of `/v1/videos`.
 * @property {string} id
 * @property {string} model Served model.
 * @property {"queued" | "in_progress" | "paused" | "completed" | "failed" | "cancelled"} status
 * @property {number} progress Share of the finished steps, in percent.
 * @property {string | null} phase Work that the job does at the moment.
 * @property {number} step Number of finished steps.
 * @property {number} steps Number of steps.
 * @property {number} created_at Unix time, in seconds.
 * @property {number | null} started_at Unix time, in seconds.
 * @property {number | null} completed_at Unix time, in seconds.
 * @property {number | null} expires_at Unix time, in seconds.
 * @property {string} seconds Length of the video, in seconds.
 * @property {string} size Width and height, in pixels: WIDTHxHEIGHT.
 * @property {number} frames Number of frames.
 * @property {number} fps Frames per second.
 * @property {{code: string, message: string} | null} error
 * @property {number | null} inference_time_s
 * @property {Record<string, number>} stage_durations Time of each phase, in seconds.
 * @property {number | null} queue_position Place in the queue; 1 is the next.
 * @property {number} seed
 * @property {string} priority
 * @property {number | null} draft_step Number of steps that the draft comes after.
 * @property {number | null} state_step Number of steps from which the job would go on.
 * @property {string | null} remixed_from_video_id
 * @property {Record<string, any>} request All fields of the served model's request.
 * @property {string} [preview] Picture as a data URL; only in events.
 */

/**
 * @typedef {object} ApiErrorBody Content of an answer that refuses a request.
 * @property {{message: string, type: string, param: string | null, code: string}} error
 */

/**
 * @typedef {object} Context What a view is built with.
 * @property {typeof import("./api.js").api} api Calls of the gateway.
 * @property {Model[]} models All models, as they are now.
 * @property {typeof import("./texts.js").texts} texts All texts.
 * @property {(hash: string) => void} go Function that opens another view: `go("#/video")`.
 */

/**
 * @typedef {object} BuiltView A view on the page.
 * @property {HTMLElement} element Content.
 * @property {() => void} close Function that ends requests, timers and sockets when the view is left.
 * @property {(models: Model[]) => void} [update] Function that is called when a model appears or changes.
 */

/**
 * @typedef {object} View A tab of the page.
 * @property {string} id Name in the address: `#/id`.
 * @property {string} label Title of the tab.
 * @property {Parameters<typeof import("./dom.js").icon>[0]} icon Name of the icon.
 * @property {(models: Model[]) => Model[]} models Function that picks the models that the view can show.
 * @property {boolean} [always] True if the view is shown even without such a model.
 * @property {(context: Context) => BuiltView} build Function that makes the view.
 */

/**
 * @typedef {object} Series
 * @property {string} name
 * @property {[number, number][]} points Points (x, y) in the units of the axes.
 * @property {number} [threshold] Value of a dashed line across the plot, in the colour of the series.
 * @property {number[]} [markers] Places of dots on the line, as indexes of points.
 * @property {boolean} [dashed]
 * @property {string} [color] CSS colour; by default that of the place in the list.
 */

/**
 * @typedef {object} PlotOptions
 * @property {string} title Name of the plot, for screen readers.
 * @property {string} xLabel Quantity and unit of the horizontal axis.
 * @property {string} yLabel Quantity and unit of the vertical axis.
 * @property {[number, number]} [xRange] Range of the horizontal axis; by default, that of the points.
 * @property {[number, number]} [yRange] Range of the vertical axis; by default, that of the points.
 * @property {boolean} [sameScale] True if both axes have the same scale, as on a map.
 * @property {number} [height] Height for a width of 720.
 * @property {boolean} [table] False to leave out the table, for a plot that changes many times a second.
 */

/**
 * @typedef {object} Plot
 * @property {HTMLElement} element
 * @property {(series: Series[], changes?: Partial<PlotOptions>) => void} draw Function that shows series, and
 *   takes over changed options.
 */

/**
 * @typedef {object} FileDropOptions
 * @property {string} label Name of the file, for screen readers.
 * @property {string} [hint] Words inside the place.
 * @property {string} [accept] Types as an `<input type="file">` takes them: "image/*", ".csv,.npz".
 * @property {boolean} [camera] True to offer the camera.
 * @property {boolean} [paste] True to take files that are pasted anywhere on the page.
 * @property {boolean} [passOn] True to leave dropped files of other types to the page.
 * @property {(file: File | null) => void} [onFile] Function that is called with a new file, or null.
 */

/**
 * @typedef {object} FileDrop
 * @property {HTMLElement} element
 * @property {() => File | null} file Function that returns the file.
 * @property {(file: File | null) => void} set Function that sets the file, without a call of `onFile`.
 * @property {() => void} close Function that ends the camera and the listeners.
 */

/**
 * @typedef {object} Control
 * @property {string[]} names Names of the fields that the control sets.
 * @property {HTMLElement} element
 * @property {() => Record<string, any>} values Function that returns what the user gave.
 * @property {(values: Record<string, any>) => void} set Function that takes over the values of its fields.
 * @property {() => string | null} problem Function that returns what is wrong, or null.
 * @property {(text: string | null) => void} show Function that shows a sentence about a problem.
 * @property {() => void} focus
 * @property {() => void} [close]
 */

/**
 * @typedef {object} ModelForm
 * @property {HTMLElement} element
 * @property {() => Record<string, any>} values Function that returns the given values; a picture is a File.
 * @property {(values: Record<string, any>) => void} set Function that takes over the values of known fields.
 * @property {() => boolean} check Function that shows what is wrong, and returns true if nothing is.
 * @property {(error: unknown) => boolean} refuse Function that shows the gateway's error at its fields, and
 *   returns true if it has a field for it.
 * @property {() => void} close
 */

/**
 * @typedef {object} Jobs
 * @property {() => Video[]} all Function that returns the known jobs, the newest first.
 * @property {(id: string) => Video | undefined} get
 * @property {(video: Video) => void} put Function that takes over a job that an answer has.
 * @property {(id: string) => void} drop Function that forgets a job.
 * @property {() => Promise<void>} more Function that reads the next page.
 * @property {() => boolean} hasMore
 * @property {(id: string | null) => void} follow Function that follows one job by its events.
 * @property {() => Promise<void>} refresh
 * @property {() => void} close
 */

/**
 * @typedef {object} RequestCard
 * @property {HTMLElement} element
 * @property {(model: string, values: Record<string, any>) => boolean} fill Function that shows a model with
 *   values, and returns false if it is not served.
 * @property {(file: File) => boolean} picture Function that takes a picture if a model does.
 * @property {(models: Model[]) => void} update
 * @property {(node: HTMLElement | null) => void} say Function that shows a note above the buttons.
 * @property {() => void} close
 */

/**
 * @typedef {object} ChunkFacts Facts of a frame, from the gateway.
 * @property {number} generation_chunk_index Number of the block.
 * @property {number} transport_chunk_index Number of the chunk.
 * @property {number} num_frames
 * @property {number} dropped Frames that were left out before it.
 * @property {(string | number)[]} started_event_ids
 * @property {Record<string, number>} latency Seconds by part.
 * @property {number} [frames_left] Frames from the block's beginning to the world's end.
 */

/**
 * @typedef {object} WorldHandlers Receivers of what happens.
 * @property {(config: import("./views/world/session.js").Config) => void} onStart
 * @property {(position: number, depth: number) => void} onQueue
 * @property {(data: ArrayBuffer, facts: ChunkFacts) => void} onFrame
 * @property {(text: string, isEnd: boolean) => void} onError
 * @property {(isLost: boolean) => void} onLost The connection was lost, or is back.
 * @property {(state: "moving" | "moved") => void} onMove
 * @property {(file: Blob) => void} onSaved
 * @property {(stopped: boolean) => void} onEnd
 */

/**
 * @typedef {object} ListenHandlers Receivers of what happens.
 * @property {() => void} onReady
 * @property {(windows: import("./views/listen/listener.js").Windows) => void} onWindows
 * @property {(detection: import("./views/listen/listener.js").Detection) => void} onDetection
 * @property {(position: number, depth: number) => void} onQueue
 * @property {(seconds: number) => void} onDone
 * @property {(text: string) => void} onError
 */

/** @typedef {import("./views/motion/trajectories.js").Point} Point */
/** @typedef {import("./views/motion/trajectories.js").Errors} Errors */

/**
 * @typedef {object} MotionAnswer Answer of `POST /v1/imu/trajectory`.
 * @property {number} frames
 * @property {number} recording_s
 * @property {number} start_s
 * @property {number[]} time_s
 * @property {Point[]} raw
 * @property {Point[]} corrected
 * @property {Point[] | null} truth
 * @property {{raw: Errors, corrected: Errors} | null} errors
 * @property {Point} mean_correction_acc
 * @property {Point} mean_correction_gyro
 */

/**
 * @typedef {object} WorldAction Something that a person can hold.
 * @property {string} id Name that is unique in the world.
 * @property {string} control Field of the turn.
 * @property {string} column Column of the field.
 * @property {number} value Value that the column takes while the action is held.
 * @property {string} label Words for people.
 * @property {import("./views/world/actions.js").Place} place Place in the cross of its control.
 * @property {string[]} codes Codes of the keys that hold it (`KeyboardEvent.code`).
 */

/**
 * @typedef {object} Contents
 * @property {(id: string, variant: import("./views/video/contents.js").Variant) => Promise<string>} url Function that gives a file's address.
 * @property {(id: string, content: string) => Promise<File>} picture Function that downloads a picture of a job's request.
 * @property {(id: string) => void} drop Function that frees the files of a job.
 * @property {() => void} close
 */

/**
 * @typedef {object} DraftSheet
 * @property {HTMLElement} element
 * @property {(ids: string[]) => void} begin Function that begins with new drafts.
 * @property {(get: (id: string) => Video | undefined) => void} show
 */

/**
 * @typedef {object} FrameReader
 * @property {number} width
 * @property {number} height
 * @property {number} count Number of frames.
 * @property {number} fps
 * @property {(index: number, canvas: HTMLCanvasElement) => Promise<ImageData>} draw Function that draws a
 *   frame and returns its pixels.
 */

/**
 * @typedef {object} StageOptions
 * @property {Contents} files
 * @property {(action: import("./views/video/stage.js").Action, video: Video) => Promise<void> | void} act
 * @property {(model: string) => boolean} canStop Function that returns true if jobs of a model can be paused.
 */

/**
 * @typedef {object} QueueOptions
 * @property {(video: Video, before: Video) => Promise<void>} move Function that puts one job before another.
 * @property {(video: Video) => Promise<void>} edit
 * @property {(video: Video) => Promise<void>} duplicate
 * @property {(video: Video) => Promise<void>} remove
 */

/**
 * @typedef {object} Limits
 * @property {number} [low] Smallest value.
 * @property {number} [high] Largest value.
 * @property {number} step Distance of two allowed values; 0 if every number is allowed.
 * @property {number} base Value from which the steps count.
 */

/**
 * @typedef {object} ProgressBar
 * @property {HTMLElement} element
 * @property {(share: number | null, text?: string) => void} set Function that shows a share, 0 to 1, or null
 *   while it is unknown, and the words for it.
 */

/**
 * @typedef {object} Meter
 * @property {HTMLElement} element
 * @property {(share: number | null, text: string) => void} show Function that shows a share, 0 to 1, with the
 *   words for it. Null, for a share that nobody knows, shows the words alone.
 */

/**
 * @typedef {object} Gpu
 * @property {string} id
 * @property {number | null} share Share of the time in which it worked, 0 to 1.
 * @property {number | null} memory_used_bytes
 * @property {number | null} memory_bytes
 * @property {number | null} power_w
 */

/**
 * @typedef {object} Server
 * @property {string} url
 * @property {State} state
 * @property {string} reason Sentence that says why it is not ready.
 * @property {number} models Number of models that are ready.
 * @property {number | null} processor_share Share of all processors that work, 0 to 1.
 * @property {number | null} memory_used_bytes
 * @property {number | null} memory_bytes
 * @property {Gpu[]} gpus
 */

/**
 * @typedef {object} Parity Worst differences from the checkpoint's network.
 * @property {number} points
 * @property {number} left_out
 * @property {number} max_abs
 * @property {number} relative_l2
 * @property {number} cosine
 * @property {number} of_bound
 */

/**
 * @typedef {object} FleetModel
 * @property {string} id
 * @property {State} state
 * @property {number} ready Number of servers that are ready with it.
 * @property {number} servers Number of servers that have it.
 * @property {string | null} engine
 * @property {string | null} precision
 * @property {Parity | null} parity
 * @property {number | null} requests_running
 * @property {{waiting: number, running: number, paused: number, oldest_s: number | null} | null} queue
 * @property {{open: number, limit: number | null, waiting: number} | null} sessions
 * @property {number} failures
 */

/**
 * @typedef {object} Failure
 * @property {string | null} video_id Null for a world or a microphone.
 * @property {string | null} session_id Null for a video.
 * @property {string} model
 * @property {number} at Unix time, in seconds.
 * @property {string} code
 * @property {string} message
 */

/** @typedef {"ready" | "draining" | "unreachable"} State */

/**
 * @typedef {object} Fleet
 * @property {Server[]} servers
 * @property {FleetModel[]} models
 * @property {Failure[]} failures The newest first.
 */

export {};
