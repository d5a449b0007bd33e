"""Training of FramePack's transformer by flow matching on sections of clips, in either order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from slipway_recipes.fitting import Schedule, fit
from slipway_recipes.flow_matching import TRAIN_TIMESTEPS, Noise, flow_loss, ground_of, weights_of
from slipway_recipes.framepack_i2v.latents import Encoded
from slipway_recipes.framepack_i2v.sections import own_latents, random_section, surroundings
from slipway_recipes.recipe import Making

GUIDANCE_SCALE = 10.0
"""Default guidance of a request. It is distilled, and training sees only this value."""


@dataclass(frozen=True)
class Course:
    """Hyperparameters of the transformer's training.

    Args:
        schedule: Hyperparameters of the optimizer.
        noise: Noise levels that it learns to remove.
        emphasis: Extra loss weight where a moving shape differs most from the ground.
        batch: Clips per step, at least 2, because the text of a single clip would be cut to its length.
    """

    schedule: Schedule
    noise: Noise
    emphasis: float = 0.0
    batch: int = 16


def train_transformer(
    network: HunyuanVideoFramepackTransformer3DModel, clips: Encoded, course: Course, making: Making
) -> HunyuanVideoFramepackTransformer3DModel:
    """Train the transformer by flow matching.

    Args:
        network: Network with its initial weights.
        clips: Encoded clips to train on.
        course: Hyperparameters of the training.
        making: Seed, threads and state folder.

    Returns:
        The network with averaged weights, float32, in eval mode.
    """

    def loss(network: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng([making.seed, step])
        drawn, section = clips.draw(random, course.batch), random_section(random)
        clean = own_latents(drawn.latents, section)
        sigmas, noise = course.noise.draw(course.batch), torch.randn_like(clean)
        share = sigmas.view(-1, 1, 1, 1, 1)
        inputs = {
            "hidden_states": (1 - share) * clean + share * noise,
            "timestep": TRAIN_TIMESTEPS * sigmas,
            "encoder_hidden_states": drawn.told.hidden,
            "encoder_attention_mask": drawn.told.mask,
            "pooled_projections": drawn.told.pooled,
            "image_embeds": drawn.image_embeds,
            "guidance": torch.full((course.batch,), 1000 * GUIDANCE_SCALE),
            **surroundings(drawn.latents, section, worn=True),
        }
        device = next(network.parameters()).device
        # The CPU's fused attention is slow in bfloat16 when it computes gradients.
        with torch.autocast(device.type, torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            flow: Tensor = network(
                **{name: value.to(device) for name, value in inputs.items()}, return_dict=False
            )[0]
        return flow_loss(flow, clean, noise, weights_of(clean, ground_of(clean), course.emphasis))

    trained = fit(network, loss, course.schedule, making, "transformer")
    assert isinstance(trained, HunyuanVideoFramepackTransformer3DModel)
    return trained
