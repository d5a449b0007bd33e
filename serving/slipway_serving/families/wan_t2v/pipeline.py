"""The program wan_t2v, which generates a video from a text, or from a text and a picture.

encode -> denoise (one Progress per step) -> decode (latent by latent) -> deliver. The shared program
(:mod:`slipway_serving.diffusion.videos.program`) runs the loop, stops and continues it; here is what is Wan's
own: the prompts, the picture that conditions the video, the choice of the denoiser in each step with its
guidance, and the decoder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.prompt import encode_prompts
from slipway_serving.diffusion.scheduler_check import check_scheduler
from slipway_serving.diffusion.schedules import (
    DiffusersSchedule,
    diffusers_schedule,
    listed_schedule,
    renoising_schedule,
)
from slipway_serving.diffusion.videos.loop import denoise_video, finished_video
from slipway_serving.diffusion.videos.program import VideoProgram
from slipway_serving.diffusion.videos.sizes import StateSize, state_size, unserved_tools
from slipway_serving.diffusion.videos.video import DenoisedVideo, Tools
from slipway_serving.families.wan_t2v.conditioning import condition_of
from slipway_serving.families.wan_t2v.experts import pick_expert, predict
from slipway_serving.families.wan_t2v.facts import PipelineFacts
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.events import Event
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import Recorder
from slipway_serving.runtime.program import Models, Settings
from slipway_serving.video.decode import decode
from slipway_serving.video.delivery import Delivery, deliver
from slipway_serving.video.frames import Frames
from slipway_serving.video.preview import preview

WHERE = TextToVideoRequest.model


class TextToVideo(VideoProgram[TextToVideoRequest]):
    """Program that answers text-to-video requests."""

    request: ClassVar[type[DenoisingRequest]] = TextToVideoRequest

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._facts = _checked_facts(settings)

    @staticmethod
    def check_files(settings: Settings) -> None:
        """Check the facts of the export."""
        _checked_facts(settings)

    @property
    def defaults(self) -> Mapping[str, int | float]:
        """Values of fields that a request leaves out, where the checkpoint has its own."""
        return self._facts.defaults

    def make_video(self, request: TextToVideoRequest, tools: Tools) -> DenoisedVideo:
        """Return the video of a request; see :class:`WanVideo`."""
        return WanVideo(request, self._facts, tools)


def _checked_facts(settings: Settings) -> PipelineFacts:
    """Read the facts of an export, and refuse those that this pipeline cannot run."""
    facts = PipelineFacts.read(settings.folder / "pipeline.json")
    check_schedules(facts.scheduler, "pipeline.json: scheduler")
    return facts


class WanVideo(DenoisedVideo):
    """Video of one text-to-video request.

    Args:
        request: Request of the caller.
        facts: Facts of the checkpoint.
        tools: Models, noise, cache and clock of the work.

    Raises:
        InvalidRequest: The request does not fit the exported models.
    """

    def __init__(self, request: TextToVideoRequest, facts: PipelineFacts, tools: Tools) -> None:
        request.check_against(facts.limits)
        self._request, self._facts, self._tools = request, facts, tools
        self._schedule = self.schedule()
        ratio = facts.boundary_ratio
        self._boundary = None if ratio is None else ratio * self._schedule.config.num_train_timesteps

    @property
    def latents_shape(self) -> tuple[int, ...]:
        """Shape of the latents."""
        return latent_shape(self._request, self._facts)

    def encode(self) -> None:
        """Encode the prompt, the negative prompt if a step has guidance, and the picture if there is one."""
        request, tools = self._request, self._tools
        texts = {"prompt": request.prompt}
        if request.guided_steps:
            texts["negative_prompt"] = request.negative_prompt
        model, rows = self._facts.models.prompt, self._facts.text_tokens
        self._embeds = encode_prompts(texts, model, rows, tools.models, tools.interruption, WHERE)
        self._condition = condition_of(
            request, self._facts, self.latents_shape[2], tools.models, tools.interruption, WHERE
        )

    def schedule(self) -> DiffusersSchedule:
        """Return the schedule of the checkpoint, or its list of steps, shifted as the request asks."""
        return schedule_of(self._facts, self._request, self._tools.noise)

    def first_latents(self) -> torch.Tensor:
        """Return the noise of the seed."""
        return self._tools.noise.next(self.latents_shape)

    def predict(self, latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
        """Predict a step with the timestep's expert, with guidance in the guided steps."""
        expert = pick_expert(float(timestep), self._boundary, self._request, self._facts)
        branches = self._embeds if step in self._request.guided_steps else self._embeds[:1]
        condition = self._condition
        inputs = {
            "hidden_states": condition.inputs(latents).numpy(),
            "timestep": condition.timesteps(float(timestep), latents.shape[2]),
            **condition.embeds,
        }
        return predict(self._tools.models, expert, inputs, branches, self._tools.cache)

    def decode(self, latents: NDArray[np.float32]) -> Generator[Frames, None, None]:
        """Decode latents to frames, latent by latent."""
        tools = self._tools
        model = self._facts.models.vae_decoder
        latents = self._condition.finished(latents)
        return decode(latents, model, tools.models, tools.interruption, tools.recorder)

    def finish(self, latents: NDArray[np.float32]) -> Iterator[Event]:
        """Decode the latents and deliver the video."""
        request, tools = self._request, self._tools
        hit_rate = None if tools.cache is None else tools.cache.hit_rate
        delivery = Delivery(WHERE, request.output, request.frames, request.height, request.width, request.fps)
        with contextlib.closing(self.decode(latents)) as decoded:
            for part in deliver(delivery, decoded, tools.interruption):
                yield replace(part, cache_hit_rate=hit_rate)

    def preview(self, latents: NDArray[np.float32]) -> NDArray[np.uint8] | None:
        """Return a picture of the latents if the request asks for one."""
        return preview(latents, self._facts.latent_rgb) if self._request.preview else None


def usual_video(facts: PipelineFacts) -> WanVideo:
    """Return a video of the size that the models are tuned for, on which no work can be done.

    Args:
        facts: Facts of the checkpoint.
    """
    axes, spatial = facts.axes, facts.vae_scale_factor_spatial
    height = axes.token_height[1] * facts.patch_size[1] * spatial
    width = axes.token_width[1] * facts.patch_size[2] * spatial
    picture = np.zeros((height, width, 3), np.uint8)
    request = TextToVideoRequest(
        prompt="",
        frames=facts.vae_scale_factor_temporal * (axes.latent_frames[1] - 1) + 1,
        height=height,
        width=width,
        image=picture if facts.limits.needs_image else None,
        last_image=picture if facts.last_images[0] else None,
    )
    fields: dict[str, Any] = dict(facts.defaults)
    request = replace(request, **fields)
    return WanVideo(request, facts, unserved_tools(WHERE))


def usual_state_size(folder: Path) -> StateSize:
    """Return the size of a stopped video's state, for a video of the size that the models are tuned for.

    Args:
        folder: Version folder of the pipeline, with the facts of its export.
    """
    return state_size(usual_video(PipelineFacts.read(folder / "pipeline.json")))


def generate(
    request: TextToVideoRequest,
    facts: PipelineFacts,
    models: Models,
    interruption: Interruption,
    recorder: Recorder | None = None,
) -> Generator[Event, None, None]:
    """Generate a video without a stop, for measurements and comparisons outside of a server.

    Args:
        request: Request of the caller.
        facts: Facts of the checkpoint.
        models: Access to the served models.
        interruption: Check for cancellation and time limit; it raises to end the work.
        recorder: Recorder of the duration of the steps, in seconds, and of the number of frames, or None.

    Returns:
        An iterator of one :class:`Progress` per denoising step, then of the parts of the result; its errors
        are those of :func:`slipway_serving.diffusion.videos.loop.denoise_video`.
    """
    items = denoise_video(
        lambda tools: WanVideo(request, facts, tools),
        request.seed,
        request.cache_threshold,
        models,
        interruption,
        recorder or Recorder(),
        WHERE,
    )
    return finished_video(items)


def schedule_of(facts: PipelineFacts, request: TextToVideoRequest, noise: Noise) -> DiffusersSchedule:
    """Return the schedule of a request: the checkpoint's list of steps if it has as many, or its scheduler.

    A distilled network always takes its list, with fresh noise in each step.

    Args:
        facts: Facts of the checkpoint.
        request: Request, whose shift replaces the default.
        noise: Noise of the request, from which a stochastic scheduler draws.
    """
    shift = facts.flow_shift if request.flow_shift is None else request.flow_shift
    if facts.distilled:
        return renoising_schedule(facts.scheduler, facts.steps_list, shift, WHERE, noise)
    if len(facts.steps_list) == request.steps:
        return listed_schedule(facts.scheduler, facts.steps_list, shift, WHERE, noise)
    return diffusers_schedule(facts.scheduler, shift, request.steps, WHERE, noise)


def check_schedules(config: Mapping[str, Any], where: str) -> None:
    """Refuse a scheduler that cannot make the schedule of every request.

    Args:
        config: Contents of scheduler_config.json.
        where: Name of the file, for messages.

    Raises:
        InvalidRequest: See :func:`slipway_serving.diffusion.scheduler_check.check_scheduler`.
    """

    def make(config: Mapping[str, Any], steps: int, noise: Noise) -> DiffusersSchedule:
        return diffusers_schedule(config, None, steps, WHERE, noise)

    check_scheduler(config, make, where)


def latent_shape(request: TextToVideoRequest, facts: PipelineFacts) -> tuple[int, int, int, int, int]:
    """Return the shape of the latents of a request."""
    return (
        1,
        facts.latent_channels,
        (request.frames - 1) // facts.vae_scale_factor_temporal + 1,
        request.height // facts.vae_scale_factor_spatial,
        request.width // facts.vae_scale_factor_spatial,
    )
