"""The program framepack_i2v, which generates a video from a picture and a prompt, section by section.

encode -> for each section: denoise (one Progress per step), decode (tile by tile), settle -> deliver the
section's frames. As pixels, every frame is delivered, and those that the next section blends over are marked
as not final; as MP4, only final frames are delivered, as a fragment of the file. Memory does not grow with
the video: only one section and the input of the next one are kept. Every model is called through ``models``,
and `interruption` can end the work between any two steps. A first-block cache is valid for one section only,
since the next section has other latents.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.diffusion.denoise import denoise
from slipway_serving.diffusion.first_block_cache import FirstBlockCache, first_block_cache, predict_branches
from slipway_serving.diffusion.guidance import guidance_embedding
from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.scheduler_check import check_scheduler
from slipway_serving.diffusion.schedules import DiffusersSchedule, diffusers_schedule
from slipway_serving.families.framepack_i2v.encoders import Encoders
from slipway_serving.families.framepack_i2v.facts import FACTS_FILE, Facts
from slipway_serving.families.framepack_i2v.request import (
    FRAMES_PER_LATENT,
    PIXELS_PER_TOKEN,
    SECTION_FRAMES,
    ImageToVideoRequest,
    Limits,
)
from slipway_serving.families.framepack_i2v.sections import (
    Forward,
    FrameRun,
    Inverted,
    Samples,
    Sections,
    Sizes,
)
from slipway_serving.protocol import images
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.protocol.events import BASE64, Event, FramesPart, Progress, VideoPart, tensors
from slipway_serving.protocol.requests import decode as decode_request
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import DENOISE_STEP, FRAMES, Recorder
from slipway_serving.runtime.program import Call, Models, Responses, Settings
from slipway_serving.video.delivery import fragment_parts, frame_parts
from slipway_serving.video.frames import to_uint8
from slipway_serving.video.tiles import decode_tiles

WHERE = ImageToVideoRequest.model
_ORDERS: Mapping[str, type[Sections]] = {"inverted": Inverted, "forward": Forward}
# diffusers limits the shift of size-dependent schedules to exp(mu) = 7.
_LARGEST_MU = math.log(7.0)


class ImageToVideo:
    """Program that answers image-to-video requests, see :func:`generate`."""

    reports_requests = True

    def __init__(self, settings: Settings) -> None:
        # The scheduler needs little compute, so the cores are left to the networks.
        torch.set_num_threads(1)
        self._model = settings.model
        self._facts = Facts.read(settings.folder)
        _check(self._facts)
        self._recorder = settings.recorder
        self._recorder.declare(DENOISE_STEP, FRAMES)

    def run(self, call: Call) -> Responses:
        """Yield the responses to a request; see :func:`generate`."""
        request = decode_request(ImageToVideoRequest, call.tensors, self._model)
        limit_s = call.limit_s if request.timeout_s is None else request.timeout_s
        interruption = Interruption(self._model, call.is_cancelled, limit_s)
        events = generate(request, self._facts, call.models, interruption, self._recorder)
        with contextlib.closing(events):
            for event in events:
                yield tensors(event)

    def close(self) -> None:
        """Do nothing; the program holds no resources."""


def generate(
    request: ImageToVideoRequest,
    facts: Facts,
    models: Models,
    interruption: Interruption,
    recorder: Recorder | None = None,
) -> Generator[Event, None, None]:
    """Generate a video.

    Args:
        request: Request to answer.
        facts: Facts of the checkpoint.
        models: Access to the served models.
        interruption: Check that ends the work when the caller cancels or the time is over.
        recorder: Recorder of step times and frame counts; None records nothing.

    Yields:
        For each section one :class:`Progress` per denoising step, counted over all sections, then the
        section's parts of the result.

    Raises:
        InvalidRequest: The request does not fit the exported models; no work was started.
        Cancelled: The caller cancelled.
        DeadlineExceeded: The time limit was exceeded.
        Unrecoverable: A model returned invalid values.
    """
    recorder = recorder or Recorder()
    request.check_against(limits_of(facts))
    size_px = request.size_px
    encoders = Encoders(facts, models, interruption, WHERE)
    prompt = encoders.prompt(request.prompt)
    noise = Noise(request.seed)
    picture, latents = encoders.picture(images.pixels(request.image), size_px, noise)
    prompt_inputs = {**prompt, **picture, "guidance": guidance_embedding(request.guidance_scale)}
    video = _ORDERS[request.order](latents, request.sections, Sizes.of(facts, SECTION_FRAMES))
    chunk = 0
    with first_block_cache(models, request.cache_threshold) as cache:
        job = _VideoJob(request, facts, models, interruption, recorder, cache)
        for section in range(request.sections):
            steps = job.denoise_section(video, prompt_inputs, noise)
            for step, state in enumerate(steps, section * request.steps + 1):
                latents = state
                yield Progress(step, request.steps * request.sections, interruption.elapsed_s())
            for run in video.finish_section(job.decode_window(video.window(latents))):
                for part in job.parts(run, chunk):
                    yield part
                    chunk += 1


def limits_of(facts: Facts) -> Limits:
    """Return the limits of a request that follow from the exported axes."""

    def pixels(axis: str) -> tuple[int, int]:
        low, _, high = facts.axes[axis]
        return low * PIXELS_PER_TOKEN, high * PIXELS_PER_TOKEN

    return Limits(pixels("token_height"), pixels("token_width"), facts.first_block_cache)


def schedule_of(facts: Facts, steps: int, latent_size: tuple[int, int]) -> DiffusersSchedule:
    """Return the schedule of a section, as diffusers' pipeline makes it.

    Args:
        facts: Facts of the checkpoint.
        steps: Number of denoising steps of the section.
        latent_size: Height and width of the latents, on which the shift of some schedulers depends.
    """
    config = facts.scheduler
    fewest, most = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    low, high = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    patch = PIXELS_PER_TOKEN // facts.pixels_per_latent
    tokens = SECTION_FRAMES * latent_size[0] * latent_size[1] / patch**2
    slope = (high - low) / (most - fewest)
    mu = min(low + slope * (tokens - fewest), _LARGEST_MU)
    sigmas = np.linspace(1.0, 0.0, steps + 1)[:-1]
    return diffusers_schedule(config, None, steps, WHERE, sigmas=sigmas, mu=mu)


def check_schedules(facts: Facts, where: str) -> None:
    """Refuse a scheduler that cannot create the schedules of the smallest and the largest videos.

    Args:
        facts: Facts of the checkpoint and of its exported axes.
        where: Name of the scheduler's file, for messages.

    Raises:
        InvalidRequest: The check of :func:`slipway_serving.diffusion.scheduler_check.check_scheduler` fails.
    """
    patch = PIXELS_PER_TOKEN // facts.pixels_per_latent
    height, width = facts.axes["token_height"], facts.axes["token_width"]
    for size in {(patch * height[i], patch * width[i]) for i in (0, -1)}:

        def make(config: Mapping[str, Any], steps: int, size: tuple[int, int] = size) -> DiffusersSchedule:
            return schedule_of(replace(facts, scheduler=config), steps, size)

        check_scheduler(facts.scheduler, make, where)


@dataclass(frozen=True)
class _VideoJob:
    """Context shared by all sections of a video."""

    request: ImageToVideoRequest
    facts: Facts
    models: Models
    interruption: Interruption
    recorder: Recorder
    cache: FirstBlockCache | None

    def denoise_section(
        self, video: Sections, prompt_inputs: Mapping[str, NDArray[Any]], noise: Noise
    ) -> Iterator[NDArray[np.float32]]:
        """Yield a section's latents after each step."""
        height, width = self.request.size_px
        side = self.facts.pixels_per_latent
        size = height // side, width // side
        names = self.facts.models
        section_inputs = video.conditions()
        # The indices of frames have no batch dimension, unlike the other inputs.
        indices = {
            name: section_inputs.pop(name) for name in [*section_inputs] if name.startswith("indices_")
        }

        def predict(latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
            step_inputs = {
                "hidden_states": latents.numpy(),
                "timestep": np.array([float(timestep)], np.float32),
            }
            inputs = {**prompt_inputs, **section_inputs, **step_inputs}
            return torch.from_numpy(
                predict_branches(self.models, names.transformer, inputs, self.cache, indices)
            )

        schedule = schedule_of(self.facts, self.request.steps, size)
        first = noise.next((1, self.facts.latent_channels, SECTION_FRAMES, *size))
        for latents in denoise(schedule, first, predict, self.interruption, self.recorder, WHERE):
            yield latents.numpy()
        if self.cache is not None:
            self.cache.reset()

    def decode_window(self, latents: Samples) -> Samples:
        """Return the frames of a window of latents."""
        tiles = self.facts.tiles

        def decode(tile: Samples) -> Samples:
            self.interruption.check("before decoding a tile")
            answer = self.models.call(self.facts.models.vae_decoder, {"latents": tile}, ["sample"])
            found: Samples = answer["sample"]
            if not np.isfinite(found).all():
                raise Unrecoverable(
                    f"{WHERE}: decoded frames must be finite, got non-finite values from"
                    f" {self.facts.models.vae_decoder}; try another precision of the export"
                )
            return found

        runs = decode_tiles(
            latents,
            decode,
            frames=tiles.frames,
            stride=tiles.stride,
            blended=tiles.blended,
            frames_per_latent=self.facts.frames_per_latent,
        )
        return np.concatenate(list(runs), axis=2)

    def parts(self, run: FrameRun, chunk: int) -> Iterator[FramesPart | VideoPart]:
        """Yield the parts to deliver for a run; `chunk` is the number of the next part of an MP4."""
        as_text = self.request.output.endswith(BASE64)
        total = self.request.frames
        if run.final:
            self.recorder.count(FRAMES, run.frames.shape[2])
        parts: Iterator[FramesPart | VideoPart] = iter(())
        if self.request.output.startswith("frames"):
            parts = frame_parts(
                to_uint8(run.frames), run.first_frame, self.interruption, as_text=as_text, final=run.final,
                frames_total=total,
            )  # fmt: skip
        elif run.final:
            parts = fragment_parts(
                to_uint8(run.frames), run.first_frame, chunk, self.request.fps, total, self.interruption,
                as_text=as_text,
            )  # fmt: skip
        hit_rate = None if self.cache is None else self.cache.hit_rate
        for part in parts:
            yield replace(part, cache_hit_rate=hit_rate)


def _check(facts: Facts) -> None:
    """Refuse facts of an export that this pipeline cannot run."""
    if facts.section_frames not in (None, SECTION_FRAMES):
        raise InvalidRequest(
            f"{FACTS_FILE}: section_frames must be {SECTION_FRAMES} or null, got {facts.section_frames}; try"
            " exporting without --axis latent_frames"
        )
    if facts.frames_per_latent != FRAMES_PER_LATENT:
        raise InvalidRequest(
            f"{FACTS_FILE}: frames_per_latent must be {FRAMES_PER_LATENT}, got {facts.frames_per_latent}"
        )
    check_schedules(facts, f"{FACTS_FILE}: scheduler")
