"""Training of Wan's denoisers by flow matching: one network on all noise, then the two experts from it.

Noise is mixed into latents along a line, and the network learns the line's direction. The text encoder learns
with the first network; the experts, which begin as copies of it, learn on their part of the noise alone.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers import WanTransformer3DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedTokenizerBase, UMT5EncoderModel

from slipway_export.families.wan_t2v import TEXT_TOKENS
from slipway_training.fitting import Schedule, fit
from slipway_training.flow_matching import TRAIN_TIMESTEPS, Noise, flow_loss, ground_of, weights_of
from slipway_training.recipe import Making
from slipway_training.shapes.captions import caption
from slipway_training.wan_t2v.latents import Encoded

# Of a caption at most, padding included: one size, so that the blocks are compiled once.
_TOKENS = 12
# How often a step sees no prompt, from which guidance knows what any video looks like.
_WITHOUT_PROMPT = 0.12


class PromptedDenoiser(nn.Module):
    """A text encoder and a denoiser: token ids and noisy latents to the flow."""

    def __init__(self, text_encoder: UMT5EncoderModel, transformer: WanTransformer3DModel) -> None:
        super().__init__()
        self.text_encoder, self.transformer = text_encoder, transformer
        for block in transformer.blocks:
            block.attn2.set_processor(_CountedPadding())

    def forward(self, latents: Tensor, timestep: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Predict the flow.

        Args:
            latents: [batch, channels, latent_frames, height / 8, width / 8], noisy.
            timestep: [batch], 0 to 1000.
            input_ids: [batch, tokens].
            attention_mask: [batch, tokens], 1 for a prompt's own tokens.
        """
        embeds = self.text_encoder(input_ids, attention_mask).last_hidden_state
        # Rows beyond the prompt are zero, the last one here standing for all that are left.
        embeds = functional.pad(embeds * attention_mask[..., None], (0, 0, 0, 1))
        flow: Tensor = self.transformer(latents, timestep, embeds, return_dict=False)[0]
        return flow.float()


class _CountedPadding:
    """Wan's cross-attention to a text whose last row counts for all of the padding to 512 rows.

    Equal to attention to all of them, since rows of zeros have the same key and value.
    """

    _attention_backend = None
    _parallel_config = None

    def __call__(self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, *_: object) -> Tensor:
        """Attend; arguments as diffusers' `WanAttnProcessor` takes them."""
        query = attn.norm_q(attn.to_q(hidden_states))
        key = attn.norm_k(attn.to_k(encoder_hidden_states))
        value = attn.to_v(encoder_hidden_states)
        rows = encoder_hidden_states.shape[1]
        counts = query.new_zeros(rows)
        counts[-1] = math.log(TEXT_TOKENS - rows + 1)
        query, key, value = (x.unflatten(2, (attn.heads, -1)) for x in (query, key, value))
        out: Tensor = dispatch_attention_fn(query, key, value, attn_mask=counts.expand(query.shape[1], -1))
        out = out.flatten(2, 3).type_as(query)
        for layer in attn.to_out:
            out = layer(out)
        return out


@dataclass(frozen=True)
class Course:
    """How a denoiser is trained.

    Args:
        schedule: of the optimizer.
        noise: which noise it learns to remove.
        emphasis: by how much more than the ground what moves counts, where it differs most.
        batch: clips of a step.
        compiled: halves a step's time, and needs a C++ compiler.
    """

    schedule: Schedule
    noise: Noise
    emphasis: float = 0.0
    batch: int = 32
    compiled: bool = True


def train_denoiser(
    network: PromptedDenoiser,
    tokenizer: PreTrainedTokenizerBase,
    clips: Encoded,
    course: Course,
    making: Making,
    name: str,
) -> PromptedDenoiser:
    """Train a denoiser by flow matching, and with it the text encoder unless that is frozen.

    Args:
        network: with its initial weights.
        tokenizer: of the captions.
        clips: to learn from.
        course: how.
        making: seed, threads and state.
        name: of the network among the recipe's.

    Returns:
        The network with mean weights, float32, in eval mode.
    """

    def loss(network: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng([making.seed, step])
        clean, subjects = clips.draw(random, course.batch)
        texts = [
            "" if random.random() < _WITHOUT_PROMPT else caption(random, subject) for subject in subjects
        ]
        tokens = tokenizer(texts, padding="max_length", max_length=_TOKENS, return_tensors="pt")
        device = next(network.parameters()).device
        sigmas, noise = course.noise.draw(course.batch), torch.randn_like(clean)
        share = sigmas.view(-1, 1, 1, 1, 1)
        noisy = (1 - share) * clean + share * noise
        # The CPU's fused attention is slow in bfloat16 where gradients are wanted.
        with torch.autocast(device.type, torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            flow: Tensor = network(
                noisy.to(device),
                (TRAIN_TIMESTEPS * sigmas).to(device),
                tokens["input_ids"].to(device),
                tokens["attention_mask"].to(device),
            )
        return flow_loss(flow, clean, noise, weights_of(clean, ground_of(clean), course.emphasis))

    if course.compiled:
        network.transformer.compile_repeated_blocks(fullgraph=True)
    trained = fit(network, loss, course.schedule, making, name)
    assert isinstance(trained, PromptedDenoiser)
    return trained


def expert_of(network: PromptedDenoiser) -> PromptedDenoiser:
    """Return a copy whose text encoder stays as it is: both experts are told the prompt by the same one."""
    expert = copy.deepcopy(network).train()
    expert.text_encoder.requires_grad_(False).eval()
    return expert
