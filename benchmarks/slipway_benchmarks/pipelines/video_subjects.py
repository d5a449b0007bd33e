"""Subjects of the video benchmark: diffusers, our loop in this process, and a server with each shortcut.

Each subject is a function that makes the video of a request once and records its times and frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_benchmarks.pipelines.step_times import denoise_ms, step_ends_s, step_ms
from slipway_client import Client, Frames, TextToVideoRequest
from slipway_serving.families.wan_t2v.facts import PipelineFacts
from slipway_serving.families.wan_t2v.pipeline import generate
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import FramesPart
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.interruption import Interruption

DIFFUSERS, IN_PROCESS, TRITON = "diffusers", "in process", "through Triton"
SHORTCUTS: dict[str, dict[str, Any]] = {
    "cache_threshold 0.1": {"cache_threshold": 0.1},
    "cache_threshold 0.2": {"cache_threshold": 0.2},
    "guidance_stop 0.5": {"guidance_stop": 0.5},
}


@dataclass
class VideoTimes:
    """Measurements of one subject, round by round.

    Attributes:
        video_ms: Time from the request to the last frame, in milliseconds.
        step_ms: Median time between steps, in milliseconds; empty if the subject does not report steps.
        frames: Frames of the last video, [frames, height, width, 3], uint8.
        hit_rate: Hit rate of the first-block cache, 0 to 1; None without a cache.
        denoise_ms: Time of all steps, in milliseconds, see
            :func:`slipway_benchmarks.pipelines.step_times.denoise_ms`.
    """

    video_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    frames: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    hit_rate: float | None = None
    denoise_ms: list[float] = field(default_factory=list)

    def record_steps(self, ends_s: Sequence[float]) -> None:
        """Record the times at which the steps of a video ended, in seconds."""
        self.step_ms.append(step_ms(ends_s))
        self.denoise_ms.append(denoise_ms(ends_s))


Make = Callable[[VideoTimes], None]
"""Function that makes the video once and records the measurements."""


def make_videos(
    subjects: Mapping[str, Make], rounds: int, report: Callable[[str], None], not_run: dict[str, str]
) -> dict[str, VideoTimes]:
    """Make the same video with every subject, in turn, after one more round to warm up.

    Args:
        subjects: Functions that make the video, by name.
        rounds: Number of timed videos of each subject.
        report: Callback that receives a line before each round.
        not_run: Mapping that receives the reasons for shortcuts that a server refuses in the first round.

    Raises:
        InvalidRequest: The server refuses the plain video.
    """
    found = {name: VideoTimes() for name in subjects}
    for number in range(rounds + 1):
        report(f"round {number} of {rounds}" if number else "warming up")
        for name in list(found):
            # The first round only warms up, so its measurements are dropped.
            taken = found[name] if number else VideoTimes()
            started = time.perf_counter()
            try:
                subjects[name](taken)
            except InvalidRequest as error:
                if number or name in (DIFFUSERS, TRITON):
                    raise
                not_run[name] = str(error)
                del found[name]
                continue
            taken.video_ms.append(1000 * (time.perf_counter() - started))
    return found


def prepare_served(client: Client, request: TextToVideoRequest) -> dict[str, Make]:
    """Return the functions that make the video through a server, plain and with each shortcut."""
    requests = {TRITON: request}
    for name, fields in SHORTCUTS.items():
        requests[f"{TRITON}, {name}"] = replace(request, **fields)
    return {name: partial(_make_through, client, each) for name, each in requests.items()}


def prepare_diffusers(checkpoint: Path, request: TextToVideoRequest) -> Make:
    """Return the function that makes the video with diffusers' own pipeline."""
    import torch
    from diffusers import WanPipeline

    pipeline = WanPipeline.from_pretrained(checkpoint, torch_dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)

    low = {} if request.guidance_scale_2 is None else {"guidance_scale_2": request.guidance_scale_2}

    def make(taken: VideoTimes) -> None:
        ends_s: list[float] = []

        def ended(_: object, step: int, timestep: object, tensors: dict[str, Any]) -> dict[str, Any]:
            ends_s.append(time.perf_counter())
            return tensors

        output = pipeline(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            num_frames=request.frames,
            height=request.height,
            width=request.width,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(request.seed),
            callback_on_step_end=ended,
            **low,
        )
        taken.record_steps(ends_s)
        taken.frames = (output.frames[0] * 255).round().astype(np.uint8)

    return make


def make_in_process(
    facts: PipelineFacts, models: InProcessModels, request: TextToVideoRequest, taken: VideoTimes
) -> None:
    """Make the video with our loop in this process, and record its figures."""
    events = list(generate(request, facts, models, Interruption("wan_t2v", lambda: False, None)))
    taken.record_steps(step_ends_s(events))
    chunks = [event.pixels for event in events if isinstance(event, FramesPart)]
    taken.frames = np.concatenate(chunks)


def _make_through(client: Client, request: TextToVideoRequest, taken: VideoTimes) -> None:
    events = list(client.generate(request))
    taken.record_steps(step_ends_s(events))
    result = events[-1]
    if not isinstance(result, Frames):
        raise TypeError(f"a request for frames must end with them, got {type(result).__name__}")
    taken.frames, taken.hit_rate = result.array, result.cache_hit_rate
