"""The program framepack_i2v, which generates a video from a picture and a prompt, section by section.

encode -> for each section: denoise (one Progress per step), decode (tile by tile), settle -> deliver the
section's frames. The shared program (:mod:`slipway_serving.diffusion.videos.program`) runs the loops, stops
and continues them. As pixels, every frame is delivered, and those that the next section blends over are
marked as not final; as MP4, only final frames are delivered, as a fragment of the file. Memory does not grow
with the video: only one section and the input of the next one are kept.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.diffusion.first_block_cache import predict_branches
from slipway_serving.diffusion.guidance import guidance_embedding
from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.scheduler_check import check_scheduler
from slipway_serving.diffusion.schedules import DiffusersSchedule, diffusers_schedule
from slipway_serving.diffusion.videos.loop import denoise_video, finished_video
from slipway_serving.diffusion.videos.program import VideoProgram
from slipway_serving.diffusion.videos.sizes import StateSize, state_size, unserved_tools
from slipway_serving.diffusion.videos.video import DenoisedVideo, Tools
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
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.protocol.events import BASE64, Event, FramesPart, VideoPart
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import FRAMES, Recorder
from slipway_serving.runtime.program import Models, Settings
from slipway_serving.video.delivery import fragment_parts, frame_parts
from slipway_serving.video.frames import Frames, to_uint8
from slipway_serving.video.tiles import decode_tiles

WHERE = ImageToVideoRequest.model
_ORDERS: Mapping[str, type[Sections]] = {"inverted": Inverted, "forward": Forward}
# diffusers limits the shift of size-dependent schedules to exp(mu) = 7.
_LARGEST_MU = math.log(7.0)


class ImageToVideo(VideoProgram[ImageToVideoRequest]):
    """Program that answers image-to-video requests."""

    request: ClassVar[type[DenoisingRequest]] = ImageToVideoRequest

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._facts = Facts.read(settings.folder)
        _check(self._facts)

    @staticmethod
    def check_files(settings: Settings) -> None:
        """Check the facts of the export."""
        _check(Facts.read(settings.folder))

    def make_video(self, request: ImageToVideoRequest, tools: Tools) -> DenoisedVideo:
        """Return the video of a request; see :class:`FramePackVideo`."""
        return FramePackVideo(request, self._facts, tools)


class FramePackVideo(DenoisedVideo):
    """Video of one image-to-video request; each section is a loop.

    Args:
        request: Request of the caller.
        facts: Facts of the checkpoint.
        tools: Models, noise, cache and clock of the work.

    Raises:
        InvalidRequest: The request does not fit the exported models.
    """

    def __init__(self, request: ImageToVideoRequest, facts: Facts, tools: Tools) -> None:
        request.check_against(limits_of(facts))
        self._request, self._facts, self._tools = request, facts, tools
        height, width = request.size_px
        self._latent_size = height // facts.pixels_per_latent, width // facts.pixels_per_latent
        self._sizes = Sizes.of(facts, SECTION_FRAMES)
        self.loops = request.sections
        self.carried = {"history": None, "overlap": None, "parts": 0}

    @property
    def latents_shape(self) -> tuple[int, ...]:
        """Shape of the latents of a section."""
        return (1, self._facts.latent_channels, SECTION_FRAMES, *self._latent_size)

    @property
    def carried_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the history that a section sees, and of the frames that it blends over."""
        sizes = self._sizes
        return {
            "history": (1, self._facts.latent_channels, sizes.history, *self._latent_size),
            "overlap": (1, 3, sizes.blended, *self._request.size_px),
        }

    def encode(self) -> None:
        """Encode the prompt and the picture."""
        request, tools = self._request, self._tools
        encoders = Encoders(self._facts, tools.models, tools.interruption, WHERE)
        prompt = encoders.prompt(request.prompt)
        pixels = images.pixels(request.image)
        picture, self._picture = encoders.picture(pixels, request.size_px, tools.noise)
        self._encoded = {**prompt, **picture, "guidance": guidance_embedding(request.guidance_scale)}

    def schedule(self) -> DiffusersSchedule:
        """Return the schedule of a section."""
        return schedule_of(self._facts, self._request.steps, self._latent_size, self._tools.noise)

    def first_latents(self) -> torch.Tensor:
        """Return the next noise of the seed."""
        return self._tools.noise.next(self.latents_shape)

    def predict(self, latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
        """Predict a step of the section with what it sees of the others."""
        surroundings = self._sections().conditions()
        # The indices of frames have no batch dimension, unlike the other inputs.
        indices = {name: surroundings.pop(name) for name in [*surroundings] if name.startswith("indices_")}
        inputs = {
            **self._encoded,
            **surroundings,
            "hidden_states": latents.numpy(),
            "timestep": np.array([float(timestep)], np.float32),
        }
        model, tools = self._facts.models.transformer, self._tools
        return torch.from_numpy(predict_branches(tools.models, model, inputs, tools.cache, indices))

    def decode(self, latents: NDArray[np.float32]) -> Iterator[Frames]:
        """Decode the window of the section under way; the video does not change."""
        for run in self._decoded(self._sections(), latents):
            yield to_uint8(run.frames)

    def finish(self, latents: NDArray[np.float32]) -> Iterator[Event]:
        """Decode the section, blend it with the one before, and deliver its frames."""
        sections = self._sections()
        parts = int(self.carried["parts"] or 0)
        for run in self._decoded(sections, latents):
            for part in self._parts(run, parts):
                yield part
                parts += 1
        self.carried = {"history": sections.history, "overlap": sections.overlap, "parts": parts}

    def _sections(self) -> Sections:
        """Return the sections as they are before the one under way is finished."""
        history, overlap = self.carried["history"], self.carried["overlap"]
        sections = _ORDERS[self._request.order](self._picture, self.loops, self._sizes)
        sections.finished = self.loop
        if isinstance(history, np.ndarray):
            sections.history = history
        sections.overlap = overlap if isinstance(overlap, np.ndarray) else None
        return sections

    def _decoded(self, sections: Sections, latents: Samples) -> list[FrameRun]:
        """Finish the section under way of the given sections, and return its frames."""
        return sections.finish_section(self._decode_window(sections.window(latents)))

    def _decode_window(self, latents: Samples) -> Samples:
        """Return the frames of a window of latents."""
        tiles = self._facts.tiles

        def decode(tile: Samples) -> Samples:
            self._tools.interruption.check("before decoding a tile")
            answer = self._tools.models.call(self._facts.models.vae_decoder, {"latents": tile}, ["sample"])
            found: Samples = answer["sample"]
            if not np.isfinite(found).all():
                raise Unrecoverable(
                    f"{WHERE}: decoded frames must be finite, got non-finite values from"
                    f" {self._facts.models.vae_decoder}; try another precision of the export"
                )
            return found

        runs = decode_tiles(
            latents,
            decode,
            frames=tiles.frames,
            stride=tiles.stride,
            blended=tiles.blended,
            frames_per_latent=self._facts.frames_per_latent,
        )
        return np.concatenate(list(runs), axis=2)

    def _parts(self, run: FrameRun, chunk: int) -> Iterator[FramesPart | VideoPart]:
        """Yield the parts to deliver for a run; `chunk` is the number of the next part of an MP4."""
        request, interruption = self._request, self._tools.interruption
        as_text, total = request.output.endswith(BASE64), request.frames
        if run.final:
            self._tools.recorder.count(FRAMES, run.frames.shape[2])
        parts: Iterator[FramesPart | VideoPart] = iter(())
        if request.output.startswith("frames"):
            parts = frame_parts(
                to_uint8(run.frames), run.first_frame, interruption, as_text=as_text, final=run.final,
                frames_total=total,
            )  # fmt: skip
        elif run.final:
            parts = fragment_parts(
                to_uint8(run.frames), run.first_frame, chunk, request.fps, total, interruption,
                as_text=as_text,
            )  # fmt: skip
        hit_rate = None if self._tools.cache is None else self._tools.cache.hit_rate
        for part in parts:
            yield replace(part, cache_hit_rate=hit_rate)


def usual_video(facts: Facts) -> FramePackVideo:
    """Return a video of the size that the models are tuned for, on which no work can be done.

    Args:
        facts: Facts of the checkpoint.
    """
    height, width = (PIXELS_PER_TOKEN * facts.axes[axis][1] for axis in ("token_height", "token_width"))
    picture = np.zeros((height, width, 3), np.uint8)
    request = ImageToVideoRequest(image=picture, prompt="usual", height=height, width=width)
    return FramePackVideo(request, facts, unserved_tools(WHERE))


def usual_state_size(folder: Path) -> StateSize:
    """Return the size of a stopped video's state, for a video of the size that the models are tuned for.

    Args:
        folder: Version folder of the pipeline, with the facts of its export.
    """
    return state_size(usual_video(Facts.read(folder)))


def generate(
    request: ImageToVideoRequest,
    facts: Facts,
    models: Models,
    interruption: Interruption,
    recorder: Recorder | None = None,
) -> Generator[Event, None, None]:
    """Generate a video without a stop, for measurements and comparisons outside of a server.

    Args:
        request: Request to answer.
        facts: Facts of the checkpoint.
        models: Access to the served models.
        interruption: Check that ends the work when the caller cancels or the time is over.
        recorder: Recorder of step times and frame counts; None records nothing.

    Returns:
        An iterator of one :class:`Progress` per denoising step, counted over all sections, and after each
        section of its parts of the result; its errors are those of
        :func:`slipway_serving.diffusion.videos.loop.denoise_video`.
    """
    items = denoise_video(
        lambda tools: FramePackVideo(request, facts, tools),
        request.seed,
        request.cache_threshold,
        models,
        interruption,
        recorder or Recorder(),
        WHERE,
    )
    return finished_video(items)


def limits_of(facts: Facts) -> Limits:
    """Return the limits of a request that follow from the exported axes."""

    def pixels(axis: str) -> tuple[int, int]:
        low, _, high = facts.axes[axis]
        return low * PIXELS_PER_TOKEN, high * PIXELS_PER_TOKEN

    return Limits(pixels("token_height"), pixels("token_width"), facts.first_block_cache)


def schedule_of(facts: Facts, steps: int, latent_size: tuple[int, int], noise: Noise) -> DiffusersSchedule:
    """Return the schedule of a section, as diffusers' pipeline makes it.

    Args:
        facts: Facts of the checkpoint.
        steps: Number of denoising steps of the section.
        latent_size: Height and width of the latents, on which the shift of some schedulers depends.
        noise: Noise of the request.
    """
    config = facts.scheduler
    fewest, most = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    low, high = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    patch = PIXELS_PER_TOKEN // facts.pixels_per_latent
    tokens = SECTION_FRAMES * latent_size[0] * latent_size[1] / patch**2
    slope = (high - low) / (most - fewest)
    mu = min(low + slope * (tokens - fewest), _LARGEST_MU)
    sigmas = np.linspace(1.0, 0.0, steps + 1)[:-1]
    return diffusers_schedule(config, None, steps, WHERE, noise, sigmas=sigmas, mu=mu)


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

        def make(
            config: Mapping[str, Any], steps: int, noise: Noise, size: tuple[int, int] = size
        ) -> DiffusersSchedule:
            return schedule_of(replace(facts, scheduler=config), steps, size, noise)

        check_scheduler(facts.scheduler, make, where)


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
