"""Training of FramePack's transformer by flow matching: a step is a section of clips, in either order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from slipway_training.fitting import Schedule, fit
from slipway_training.flow_matching import TRAIN_TIMESTEPS, Noise, flow_loss, ground_of, weights_of
from slipway_training.framepack_i2v.latents import Encoded
from slipway_training.framepack_i2v.sections import own_latents, random_section, surroundings
from slipway_training.recipe import Making

GUIDANCE_SCALE = 10.0
"""The default of a request; it is distilled, and the only one that training sees."""


@dataclass(frozen=True)
class Course:
    """How the transformer is trained.

    Args:
        schedule: of the optimizer.
        noise: which noise it learns to remove.
        emphasis: by how much more than the ground what moves counts, where it differs most.
        batch: clips of a step, at least 2: of one alone the text would be cut to its length.
    """

    schedule: Schedule
    noise: Noise
    emphasis: float = 0.0
    batch: int = 16


def train_transformer(
    network: HunyuanVideoFramepackTransformer3DModel, clips: Encoded, course: Course, making: Making
) -> HunyuanVideoFramepackTransformer3DModel:
    """Train a transformer by flow matching.

    Args:
        network: with its initial weights.
        clips: to learn from.
        course: how.
        making: seed, threads and state.

    Returns:
        The network with mean weights, float32, in eval mode.
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
        # The CPU's fused attention is slow in bfloat16 where gradients are wanted.
        with torch.autocast(device.type, torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            flow: Tensor = network(
                **{name: value.to(device) for name, value in inputs.items()}, return_dict=False
            )[0]
        return flow_loss(flow, clean, noise, weights_of(clean, ground_of(clean), course.emphasis))

    trained = fit(network, loss, course.schedule, making, "transformer")
    assert isinstance(trained, HunyuanVideoFramepackTransformer3DModel)
    return trained
