"""Choice of Wan's denoiser for a timestep, and its prediction with guidance.

The result is equal to that of diffusers' WanPipeline for the same weights and seed. Only the computation
differs: both guidance branches are one denoiser call of batch two (without a first-block cache).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.diffusion.first_block_cache import FirstBlockCache, predict_branches
from slipway_serving.diffusion.guidance import combine_branches
from slipway_serving.families.wan_t2v.facts import PipelineFacts
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.runtime.program import Models, Tensors


@dataclass(frozen=True)
class Expert:
    """Denoiser of a part of the noise schedule.

    Attributes:
        model: Name of the served model.
        guidance_scale: Weight of the prompt against the negative prompt.
    """

    model: str
    guidance_scale: float


def pick_expert(
    timestep: float, boundary: float | None, request: TextToVideoRequest, facts: PipelineFacts
) -> Expert:
    """Return the denoiser for a timestep.

    Args:
        timestep: Timestep, 0 to the number of training timesteps.
        boundary: Lowest timestep of the high-noise denoiser; None if there is no other denoiser.
        request: Request with the guidance scales.
        facts: Facts of the checkpoint with the names of the models.
    """
    low = facts.models.denoiser_low
    if boundary is None or low is None or timestep >= boundary:
        return Expert(facts.models.denoiser_high, request.guidance_scale)
    second = request.guidance_scale if request.guidance_scale_2 is None else request.guidance_scale_2
    return Expert(low, second)


def predict(
    models: Models,
    expert: Expert,
    inputs: Tensors,
    embeds: NDArray[np.float32],
    cache: FirstBlockCache | None = None,
) -> torch.Tensor:
    """Predict the flow with a denoiser, with classifier-free guidance if there are two embeddings.

    Args:
        models: Access to the denoiser.
        expert: Denoiser and its guidance scale.
        inputs: Inputs of the denoiser besides the prompt's, one row each, float32: the latents with further
            channels, the timestep [1, 1], or that of each latent frame [1, latent frames], and the embeddings
            of pictures.
        embeds: Embeddings, [1 or 2, text tokens, width], float32: the prompt's, then the negative prompt's.
        cache: First-block cache that calls the denoiser branch by branch; None calls it through `models`.

    Returns:
        The prediction, in the shape of the latents without further channels, float32.
    """
    branches = len(embeds)
    tensors = {name: np.repeat(values, branches, axis=0) for name, values in inputs.items()}
    tensors["encoder_hidden_states"] = embeds
    return combine_branches(
        torch.from_numpy(predict_branches(models, expert.model, tensors, cache)), expert.guidance_scale
    )
