"""The denoising loop in named steps: scheduler, noise, the expert of a timestep, its prediction, the step.

Equal to diffusers' WanPipeline for the same weights and seed, with two differences in how it is computed:
both guidance branches are one denoiser call of batch two (without a first-block cache), and latents that are
not finite end the loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.errors import InvalidRequest, Unrecoverable
from slipway_serving.metrics import DENOISE_STEP, Recorder
from slipway_serving.program import Models
from slipway_serving.wan_t2v.cache import FirstBlockCache
from slipway_serving.wan_t2v.facts import LatentRgb, PipelineFacts
from slipway_serving.wan_t2v.request import TextToVideoRequest
from slipway_serving.watch import Watch


@dataclass(frozen=True)
class Expert:
    """The denoiser of a part of the noise schedule.

    Attributes:
        model: the served model's name.
        guidance_scale: weight of the prompt against the negative prompt.
    """

    model: str
    guidance_scale: float


def make_scheduler(config: Mapping[str, Any], flow_shift: float | None) -> Any:
    """Build a diffusers scheduler.

    Args:
        config: contents of scheduler_config.json, ``_class_name`` included.
        flow_shift: replaces the checkpoint's own shift; None keeps it.

    Raises:
        InvalidRequest: the scheduler has no flow shift, or diffusers no such scheduler.
    """
    import diffusers.schedulers  # lazily loads the one scheduler that is asked for

    name = str(config.get("_class_name"))
    kind: Any = getattr(diffusers.schedulers, name, None)
    if not hasattr(kind, "set_begin_index"):
        raise InvalidRequest(
            f"pipeline.json: scheduler must be one of diffusers' flow schedulers, got {name}"
        )
    if flow_shift is None:
        return kind.from_config(config)
    known = inspect.signature(kind).parameters
    # UniPC and others apply flow_shift to flow sigmas only; FlowMatchEuler calls the same thing shift.
    key = "flow_shift" if "flow_shift" in known and config.get("use_flow_sigmas") else "shift"
    if key not in known:
        raise InvalidRequest(
            f"wan_t2v: flow_shift must be left out with this checkpoint's {name}, got {flow_shift}"
        )
    return kind.from_config(config, **{key: flow_shift})


def make_noise(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the initial latents, float32, as diffusers makes them with a CPU generator of this seed."""
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float32)


def pick_expert(
    timestep: float, boundary: float | None, request: TextToVideoRequest, facts: PipelineFacts
) -> Expert:
    """Return the denoiser for a timestep.

    Args:
        timestep: 0 to the number of training timesteps.
        boundary: from here upwards the high-noise denoiser works; None if there is only that.
        request: gives the guidance scales.
        facts: give the models' names.
    """
    low = facts.models.denoiser_low
    if boundary is None or low is None or timestep >= boundary:
        return Expert(facts.models.denoiser_high, request.guidance_scale)
    second = request.guidance_scale if request.guidance_scale_2 is None else request.guidance_scale_2
    return Expert(low, second)


def predict(
    models: Models,
    expert: Expert,
    latents: torch.Tensor,
    timestep: float,
    embeds: NDArray[np.float32],
    cache: FirstBlockCache | None = None,
) -> torch.Tensor:
    """Ask a denoiser what to remove, with classifier-free guidance if there are two embeddings.

    Args:
        models: reaches the denoiser.
        expert: which one.
        latents: [1, channels, latent frames, height / 8, width / 8], float32.
        timestep: of the scheduler.
        embeds: [1 or 2, text tokens, width], float32: the prompt's, then the negative prompt's.
        cache: asks the denoiser in the place of `models`, branch by branch; None without one.

    Returns:
        The prediction, same shape as the latents, float32.
    """
    batch = len(embeds)
    tensors = {
        "hidden_states": np.repeat(latents.numpy(), batch, axis=0),
        "timestep": np.full((batch, 1), timestep, np.float32),
        "encoder_hidden_states": embeds,
    }
    if cache is None:
        sample = torch.from_numpy(models.call(expert.model, tensors, ["sample"])["sample"])
    else:
        sample = torch.from_numpy(cache.predict(expert.model, tensors))
    if batch == 1:
        return sample
    conditional, unconditional = sample[:1], sample[1:]
    return unconditional + expert.guidance_scale * (conditional - unconditional)


def denoise(
    request: TextToVideoRequest,
    facts: PipelineFacts,
    scheduler: Any,
    models: Models,
    embeds: NDArray[np.float32],
    watch: Watch,
    recorder: Recorder,
    cache: FirstBlockCache | None = None,
) -> Iterator[torch.Tensor]:
    """Denoise from pure noise.

    Args:
        request: what was asked for.
        facts: of the checkpoint.
        scheduler: see :func:`make_scheduler`; changed by the loop.
        models: reach the denoisers.
        embeds: [1 or 2, text tokens, width], float32: the prompt's, and with guidance the negative prompt's.
        watch: asked before each step.
        recorder: takes the seconds of each step.
        cache: see :func:`predict`.

    Yields:
        The latents after each step, [1, channels, latent frames, height / 8, width / 8], float32.

    Raises:
        Cancelled: the caller gave up.
        DeadlineExceeded: the time limit is passed.
        Unrecoverable: the latents are not finite any more.
    """
    scheduler.set_timesteps(request.steps)
    scheduler.set_begin_index(0)
    if len(scheduler.timesteps) != request.steps:
        raise Unrecoverable(
            f"wan_t2v: the scheduler must take {request.steps} steps, got {len(scheduler.timesteps)}"
        )
    ratio = facts.boundary_ratio
    boundary = None if ratio is None else ratio * scheduler.config.num_train_timesteps
    latents = make_noise(request.seed, latent_shape(request, facts))
    guided = request.guided_steps
    for step, timestep in enumerate(scheduler.timesteps, 1):
        watch.check(f"before step {step} of {request.steps}")
        began_s = watch.elapsed_s()
        expert = pick_expert(float(timestep), boundary, request, facts)
        branches = embeds if step - 1 in guided else embeds[:1]
        prediction = predict(models, expert, latents, float(timestep), branches, cache)
        latents = scheduler.step(prediction, timestep, latents, return_dict=False)[0]
        if not torch.isfinite(latents).all():
            raise Unrecoverable(
                f"wan_t2v: latents must be finite, got non-finite values after step {step} of "
                f"{request.steps} from {expert.model}; try another precision of the export"
            )
        recorder.observe(DENOISE_STEP, watch.elapsed_s() - began_s)
        yield latents


def latent_shape(request: TextToVideoRequest, facts: PipelineFacts) -> tuple[int, int, int, int, int]:
    """Return the shape of the latents of a request."""
    return (
        1,
        facts.latent_channels,
        (request.frames - 1) // facts.vae_scale_factor_temporal + 1,
        request.height // facts.vae_scale_factor_spatial,
        request.width // facts.vae_scale_factor_spatial,
    )


def preview(latents: torch.Tensor, rgb: LatentRgb) -> NDArray[np.uint8]:
    """Draw the middle latent frame, [height / 8, width / 8, 3], uint8.

    Args:
        latents: [1, channels, latent frames, height / 8, width / 8], float32.
        rgb: the linear map to colours.
    """
    middle = latents[0, :, latents.shape[2] // 2].numpy()
    colours = np.einsum("chw,cr->hwr", middle, np.asarray(rgb.weight)) + np.asarray(rgb.bias)
    picture: NDArray[np.uint8] = np.round(np.clip(colours * 0.5 + 0.5, 0, 1) * 255).astype(np.uint8)
    return picture
