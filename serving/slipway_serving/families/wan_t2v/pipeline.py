"""Program wan_t2v: text-to-video generation, step by step, as a generator of events.

The stages are encode_prompts -> denoise (one Progress per step) -> decode (latent by latent) -> deliver
(frames as they are decoded, or the MP4 file that is encoded meanwhile). The pipeline calls every model
through ``models``, so the same loop runs in Triton, in process and in tests. `interruption` may end it
between any two stages, steps or latents. However it ends, it tells the decoder and denoisers with a cache to
free it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.diffusion.denoise import Predict, denoise
from slipway_serving.diffusion.first_block_cache import FirstBlockCache, first_block_cache
from slipway_serving.diffusion.noise import make_noise
from slipway_serving.diffusion.prompt import encode_prompts
from slipway_serving.diffusion.scheduler_check import check_scheduler
from slipway_serving.diffusion.schedules import DiffusersSchedule, diffusers_schedule
from slipway_serving.families.wan_t2v.experts import pick_expert, predict
from slipway_serving.families.wan_t2v.facts import PipelineFacts
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol.events import Event, Progress, tensors
from slipway_serving.protocol.requests import decode as decode_request
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import DENOISE_STEP, FRAMES, Recorder
from slipway_serving.runtime.program import Call, Models, Responses, Settings
from slipway_serving.video.decode import decode
from slipway_serving.video.delivery import Delivery, deliver
from slipway_serving.video.preview import preview

WHERE = TextToVideoRequest.model


class TextToVideo:
    """Program that answers text-to-video requests, see :func:`generate`."""

    reports_requests = True

    def __init__(self, settings: Settings) -> None:
        # The scheduler needs little arithmetic, so the cores are left to the denoisers.
        torch.set_num_threads(1)
        self._model = settings.model
        self._facts = PipelineFacts.read(settings.folder / "pipeline.json")
        check_schedules(self._facts.scheduler, "pipeline.json: scheduler")
        self._recorder = settings.recorder
        self._recorder.declare(DENOISE_STEP, FRAMES)

    def run(self, call: Call) -> Responses:
        """Yield the responses to a request; see :func:`generate`."""
        request = decode_request(TextToVideoRequest, call.tensors, self._model)
        limit_s = call.limit_s if request.timeout_s is None else request.timeout_s
        interruption = Interruption(self._model, call.is_cancelled, limit_s)
        events = generate(request, self._facts, call.models, interruption, self._recorder)
        with contextlib.closing(events):
            for event in events:
                yield tensors(event)

    def close(self) -> None:
        """Do nothing: the pipeline has nothing to free."""


def generate(
    request: TextToVideoRequest,
    facts: PipelineFacts,
    models: Models,
    interruption: Interruption,
    recorder: Recorder | None = None,
) -> Generator[Event, None, None]:
    """Generate a video.

    Args:
        request: Request of the caller.
        facts: Facts of the checkpoint.
        models: Access to the served models.
        interruption: Check for cancellation and time limit; it raises to end the work.
        recorder: Recorder of the duration of the steps, in seconds, and of the number of frames, or None.

    Yields:
        One :class:`Progress` per denoising step, then the parts of the result.

    Raises:
        InvalidRequest: The request does not fit the exported models; no work was started.
        Cancelled: The caller cancelled.
        DeadlineExceeded: The time limit has passed.
        Unrecoverable: A model returned something impossible.
    """
    recorder = recorder or Recorder()
    request.check_against(facts.limits)
    schedule = diffusers_schedule(facts.scheduler, request.flow_shift, request.steps, WHERE)
    texts = {"prompt": request.prompt}
    if request.guided_steps:
        texts["negative_prompt"] = request.negative_prompt
    embeds = encode_prompts(texts, facts.models.prompt, facts.text_tokens, models, interruption, WHERE)
    noise = make_noise(request.seed, latent_shape(request, facts))
    with first_block_cache(models, request.cache_threshold) as cache:
        guided = guided_prediction(request, facts, schedule, models, embeds, cache)
        for step, latents in enumerate(denoise(schedule, noise, guided, interruption, recorder, WHERE), 1):
            picture = preview(latents.numpy(), facts.latent_rgb) if request.preview else None
            yield Progress(step, request.steps, interruption.elapsed_s(), picture)
    hit_rate = None if cache is None else cache.hit_rate
    delivery = Delivery(WHERE, request.output, request.frames, request.height, request.width, request.fps)
    decoded = decode(latents.numpy(), facts.models.vae_decoder, models, interruption, recorder)
    with contextlib.closing(decoded):
        for part in deliver(delivery, decoded, interruption):
            yield replace(part, cache_hit_rate=hit_rate)


def check_schedules(config: Mapping[str, Any], where: str) -> None:
    """Refuse a scheduler that cannot make the schedule of every request.

    Args:
        config: Contents of scheduler_config.json.
        where: Name of the file, for messages.

    Raises:
        InvalidRequest: See :func:`slipway_serving.diffusion.scheduler_check.check_scheduler`.
    """

    def make(config: Mapping[str, Any], steps: int) -> DiffusersSchedule:
        return diffusers_schedule(config, None, steps, WHERE)

    check_scheduler(config, make, where)


def guided_prediction(
    request: TextToVideoRequest,
    facts: PipelineFacts,
    schedule: DiffusersSchedule,
    models: Models,
    embeds: NDArray[np.float32],
    cache: FirstBlockCache | None = None,
) -> Predict:
    """Return the predict function of the loop: the timestep's expert, with guidance in the guided steps.

    Args:
        request: Request of the caller.
        facts: Facts of the checkpoint.
        schedule: Schedule, which has the number of training timesteps.
        models: Access to the denoisers.
        embeds: Embeddings, [1 or 2, text tokens, width], float32: the prompt's, and with guidance the
            negative prompt's.
        cache: First-block cache or None, see :func:`slipway_serving.families.wan_t2v.experts.predict`.
    """
    ratio = facts.boundary_ratio
    boundary = None if ratio is None else ratio * schedule.config.num_train_timesteps
    guided = request.guided_steps

    def prediction(latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
        expert = pick_expert(float(timestep), boundary, request, facts)
        branches = embeds if step in guided else embeds[:1]
        return predict(models, expert, latents, float(timestep), branches, cache)

    return prediction


def latent_shape(request: TextToVideoRequest, facts: PipelineFacts) -> tuple[int, int, int, int, int]:
    """Return the shape of the latents of a request."""
    return (
        1,
        facts.latent_channels,
        (request.frames - 1) // facts.vae_scale_factor_temporal + 1,
        request.height // facts.vae_scale_factor_spatial,
        request.width // facts.vae_scale_factor_spatial,
    )
