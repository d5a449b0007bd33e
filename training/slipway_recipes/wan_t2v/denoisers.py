"""Training of Wan's denoisers by flow matching: one network on all noise levels, then the two experts.

Noisy latents lie on a line between clean latents and noise, and the network learns the line's direction. The
text encoder trains together with the first network. The experts start as copies of that network and train
only on their range of noise levels.
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

from slipway_export.families.wan_t2v.presets import TEXT_TOKENS
from slipway_loadtests.pictures.captions import caption
from slipway_recipes.fitting import Schedule, fit
from slipway_recipes.flow_matching import TRAIN_TIMESTEPS, Noise, flow_loss, ground_of, weights_of
from slipway_recipes.recipe import Making
from slipway_recipes.wan_t2v.latents import Encoded

# Number of tokens of every caption, padding included. A single size means the blocks are compiled once.
_TOKENS = 12
# Share of clips without a prompt, from which the network learns the unconditional output for guidance.
_WITHOUT_PROMPT = 0.12


class PromptedDenoiser(nn.Module):
    """Text encoder and denoiser that predict the flow from token ids and noisy latents."""

    def __init__(self, text_encoder: UMT5EncoderModel, transformer: WanTransformer3DModel) -> None:
        super().__init__()
        self.text_encoder, self.transformer = text_encoder, transformer
        for block in transformer.blocks:
            block.attn2.set_processor(_CountedPadding())

    def forward(self, latents: Tensor, timestep: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Predict the flow from noisy latents and a tokenized prompt.

        Args:
            latents: Noisy latents, [batch, channels, latent_frames, height / 8, width / 8].
            timestep: Timesteps, [batch], 0 to 1000.
            input_ids: Token ids of the prompts, [batch, tokens].
            attention_mask: Attention mask, [batch, tokens], 1 for a prompt's own tokens.
        """
        embeds = self.text_encoder(input_ids, attention_mask).last_hidden_state
        # Rows beyond the prompt are zero. The last row represents all the remaining ones.
        embeds = functional.pad(embeds * attention_mask[..., None], (0, 0, 0, 1))
        flow: Tensor = self.transformer(latents, timestep, embeds, return_dict=False)[0]
        return flow.float()


class _CountedPadding:
    """Wan's cross-attention to a text whose last row represents all of the padding to 512 rows.

    The result equals attention to all rows, since rows of zeros have the same key and value.
    """

    _attention_backend = None
    _parallel_config = None

    def __call__(self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, *_: object) -> Tensor:
        """Compute the attention, with the arguments of diffusers' `WanAttnProcessor`."""
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
    """Hyperparameters of a denoiser's training.

    Args:
        schedule: Hyperparameters of the optimizer.
        noise: Noise levels that it learns to remove.
        emphasis: Extra loss weight where a moving shape differs most from the ground.
        batch: Clips per step.
        compiled: True to compile the blocks, which halves a step's time and needs a C++ compiler.
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
    """Train a denoiser by flow matching, together with the text encoder unless that is frozen.

    Args:
        network: Network with its initial weights.
        tokenizer: Tokenizer of the captions.
        clips: Encoded clips to train on.
        course: Hyperparameters of the training.
        making: Seed, threads and state folder.
        name: Name of the network within the recipe.

    Returns:
        The network with averaged weights, float32, in eval mode.
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
        # The CPU's fused attention is slow in bfloat16 when it computes gradients.
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
    """Return a copy with a frozen text encoder, so that both experts share the same one."""
    expert = copy.deepcopy(network).train()
    expert.text_encoder.requires_grad_(False).eval()
    return expert
