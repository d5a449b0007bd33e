"""FramePack transformer of HunyuanVideo in the form of a graph: named input tensors and no branches.

The layers are those of diffusers' `HunyuanVideoFramepackTransformer3DModel`; only the code between them
differs. diffusers truncates the text of a single prompt at the end of its mask, a size that depends on a
value, and masks the text of several prompts in a loop over the batch. Here a mask of keys does both: the text
is at the end of the sequence, so for all other tokens a masked key is equivalent to a missing token.

The graph for ONNX Runtime has the rotation of queries and keys as one operator, and the mask as extra
channels of both (:mod:`slipway_export.networks.attention_bias`), so that attention needs no mask input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor, nn

from slipway_export.graph.lowering import rotate
from slipway_export.networks.attention_bias import without_keys


class Transformer(nn.Module):
    """FramePack transformer, which predicts a section's flow from latents, history, prompt and picture."""

    def __init__(self, transformer: HunyuanVideoFramepackTransformer3DModel) -> None:
        super().__init__()
        self.transformer = transformer
        fix_embedders(transformer)
        if transformer.x_embedder.proj.weight.dtype is not torch.float32:
            # FramePack's own code runs the last projection in float32 too.
            transformer.proj_out.float().register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        encoder_attention_mask: Tensor,
        pooled_projections: Tensor,
        image_embeds: Tensor,
        indices_latents: Tensor,
        guidance: Tensor,
        latents_clean: Tensor,
        indices_latents_clean: Tensor,
        latents_history_2x: Tensor,
        indices_latents_history_2x: Tensor,
        latents_history_4x: Tensor,
        indices_latents_history_4x: Tensor,
    ) -> Tensor:
        """Predict the flow of a batch of sections; the names are those of diffusers' forward.

        Args:
            hidden_states: Noisy latents, [batch, channels, 9, height / 8, width / 8], float32.
            timestep: Timesteps, [batch], float32, 0 to 1000.
            encoder_hidden_states: Hidden states of the prompt, [batch, text_tokens, text_embed_dim], float32.
            encoder_attention_mask: Mask of the prompt, [batch, text_tokens], int64, ones and then zeros.
            pooled_projections: Pooled vector of the prompt, [batch, pooled_projection_dim], float32.
            image_embeds: Embedding of the picture, [batch, image_tokens, image_proj_dim], float32.
            indices_latents: Positions of the latent frames in time, [9], int64.
            guidance: Guidance scale times 1000, [batch], float32.
            latents_clean: Frames seen at full size, [batch, channels, 2, height / 8, width / 8], float32.
            indices_latents_clean: Positions of these frames, [2], int64.
            latents_history_2x: Frames seen at half size, float32,
                [batch, channels, 2, height / 8, width / 8].
            indices_latents_history_2x: Positions of these frames, [2], int64.
            latents_history_4x: Frames seen at a quarter, float32,
                [batch, channels, 16, height / 8, width / 8].
            indices_latents_history_4x: Positions of these frames, [16], int64.

        Returns:
            Flow, same shape and dtype as `hidden_states`.
        """
        net: Any = self.transformer
        hidden, rotations, temb, context, context_mask = embedded(
            net, hidden_states, timestep, encoder_hidden_states, encoder_attention_mask, pooled_projections,
            image_embeds, indices_latents, guidance, latents_clean, indices_latents_clean, latents_history_2x,
            indices_latents_history_2x, latents_history_4x, indices_latents_history_4x,
        )  # fmt: skip
        # The embedders run in float32 in every precision.
        temb = temb.to(hidden.dtype)
        seen = keys_seen(hidden, context_mask)
        for block in (*net.transformer_blocks, *net.single_transformer_blocks):
            hidden, context = block(hidden, context, temb, seen, rotations)
        patch = net.config.patch_size
        grid = (hidden_states.shape[2], *(side // patch for side in hidden_states.shape[3:]))
        return projected(net, hidden[:, -math.prod(grid) :], temb, grid)


class Embedded(NamedTuple):
    """Inputs of a transformer's blocks.

    Attributes:
        hidden: Tokens of history at a quarter, half and full size, then of the section, [batch, tokens, dim].
        rotations: Cosines and sines of the tokens' positions, each [tokens, size of a head], float32; equal
            for the two channels of a pair.
        temb: Embedding of time, guidance and pooled text, [batch, dim], float32.
        context: Tokens of picture and text, [batch, image_tokens + text_tokens, dim].
        context_mask: Mask of `context`, [batch, image_tokens + text_tokens], int64, ones and then zeros.
    """

    hidden: Tensor
    rotations: tuple[Tensor, Tensor]
    temb: Tensor
    context: Tensor
    context_mask: Tensor


def embedded(
    net: Any,
    hidden_states: Tensor,
    timestep: Tensor,
    encoder_hidden_states: Tensor,
    encoder_attention_mask: Tensor,
    pooled_projections: Tensor,
    image_embeds: Tensor,
    indices_latents: Tensor,
    guidance: Tensor,
    latents_clean: Tensor,
    indices_latents_clean: Tensor,
    latents_history_2x: Tensor,
    indices_latents_history_2x: Tensor,
    latents_history_4x: Tensor,
    indices_latents_history_4x: Tensor,
) -> Embedded:
    """Return the inputs of the blocks of diffusers' transformer `net` from those of :class:`Transformer`."""
    _, _, _, height, width = hidden_states.shape
    patch, dtype = net.config.patch_size, net.x_embedder.proj.weight.dtype
    clean = [x.to(dtype) for x in (latents_clean, latents_history_2x, latents_history_4x)]
    positions = [
        net.rope(indices, height, width, hidden_states.device)
        for indices in (
            indices_latents, indices_latents_clean, indices_latents_history_2x, indices_latents_history_4x
        )
    ]  # fmt: skip
    hidden, rotations = net._pack_history_states(
        net.x_embedder(hidden_states.to(dtype)), *net.clean_x_embedder(*clean), *positions,
        height // patch, width // patch,
    )  # fmt: skip
    temb = net.time_text_embed(timestep, pooled_projections, guidance)[0]
    text = net.context_embedder(encoder_hidden_states.to(dtype), timestep, encoder_attention_mask)
    image = net.image_projection(image_embeds.to(dtype))
    mask = torch.cat([encoder_attention_mask.new_ones(image.shape[:2]), encoder_attention_mask], dim=1)
    return Embedded(hidden, rotations, temb, torch.cat([image, text], dim=1), mask)


def keys_seen(hidden: Tensor, context_mask: Tensor) -> Tensor:
    """Return the mask of all keys but the padding, [batch, 1, 1, tokens + context tokens]."""
    length = hidden.shape[1] + context_mask.sum(dim=1, keepdim=True)
    tokens = torch.arange(hidden.shape[1] + context_mask.shape[1], device=hidden.device)
    return (tokens < length)[:, None, None]


def projected(net: Any, hidden: Tensor, temb: Tensor, grid: Sequence[int]) -> Tensor:
    """Return the flow of a section, [batch, channels, frames, height / 8, width / 8], float32.

    Args:
        net: Transformer with the last norm and projection.
        hidden: Tokens after all blocks, [batch, tokens, dim].
        temb: Embedding of time, guidance and pooled text, [batch, dim], same dtype as `hidden`.
        grid: Numbers of frames, rows and columns of tokens.
    """
    patch = net.config.patch_size
    patches = net.proj_out(net.norm_out(hidden, temb)).unflatten(1, grid).unflatten(-1, (-1, patch, patch))
    flow: Tensor = patches.permute(0, 4, 1, 2, 5, 3, 6).flatten(5, 6).flatten(3, 4)
    return flow.float()


class _Waves(nn.Module):
    """Sinusoidal embedding as in diffusers' `Timesteps` of HunyuanVideo, with precomputed frequencies.

    Runtimes round the exponential function differently; at a guidance of 10,000, a frequency rounded
    differently changes the angle by 0.001.
    """

    frequencies: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        exponents = -math.log(10_000) * torch.arange(half, dtype=torch.float32) / half
        self.register_buffer("frequencies", torch.exp(exponents))

    def forward(self, numbers: Tensor) -> Tensor:
        """Embed numbers [batch], float32, as [batch, channels], float32, cosines first."""
        angles = numbers[:, None].float() * self.frequencies[None]
        return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)


def fix_embedders(transformer: Any) -> None:
    """Precompute the frequencies of a transformer's embedders, and run `time_text_embed` in float32.

    The embedders of time, guidance and pooled text affect all later layers.
    """
    for embedder in (transformer.time_text_embed, transformer.context_embedder.time_text_embed):
        embedder.time_proj = _Waves(embedder.time_proj.num_channels)
    transformer.time_text_embed.float()


class _Processor:
    """Attention processor for tracing HunyuanVideo, with the rotation as one operator and without a mask."""

    _attention_backend = None
    _parallel_config = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor,
        image_rotary_emb: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Attend, with the arguments of diffusers' `HunyuanVideoAttnProcessor2_0`."""
        streams = (_of_latents(attn, hidden_states), _of_context(attn, encoder_hidden_states))
        # The tables contain each angle twice, once for each channel of a pair.
        cos, sin = (table[:, 0::2].to(hidden_states.dtype) for table in image_rotary_emb)
        (query, key, value), others = streams
        query, key = (_by_head(rotate(x.flatten(2), cos, sin, attn.heads), attn.heads) for x in (query, key))
        query, key, value = (
            torch.cat([x, other], dim=1) for x, other in zip((query, key, value), others, strict=True)
        )
        scale = query.shape[-1] ** -0.5
        query, key = without_keys(query, key, attention_mask[:, 0, 0])
        out = dispatch_attention_fn(query, key, value, scale=scale).flatten(2, 3)
        latents, context = out.split([hidden_states.shape[1], encoder_hidden_states.shape[1]], dim=1)
        if getattr(attn, "to_out", None) is not None:
            latents = attn.to_out[0](latents)
        if getattr(attn, "to_add_out", None) is not None:
            context = attn.to_add_out(context)
        return latents, context


def _by_head(x: Any, heads: int) -> Tensor:
    split: Tensor = x.unflatten(2, (heads, -1))
    return split


def _of_latents(attn: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values [batch, tokens, heads, size] from the layers of the latents."""
    query, key, value = (_by_head(layer(x), attn.heads) for layer in (attn.to_q, attn.to_k, attn.to_v))
    return attn.norm_q(query), attn.norm_k(key), value


def _of_context(attn: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of picture and text; dual-stream blocks have own layers for them."""
    if attn.add_q_proj is None:
        return _of_latents(attn, x)
    layers = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
    query, key, value = (_by_head(layer(x), attn.heads) for layer in layers)
    return attn.norm_added_q(query), attn.norm_added_k(key), value


@contextmanager
def lowered_attention(module: nn.Module) -> Iterator[None]:
    """Trace a transformer with attention that suits ONNX Runtime; restore its own attention afterwards."""
    net: Any = module.transformer
    attentions = [block.attn for block in (*net.transformer_blocks, *net.single_transformer_blocks)]
    own = [attention.processor for attention in attentions]
    for attention in attentions:
        attention.processor = _Processor()
    try:
        yield
    finally:
        for attention, processor in zip(attentions, own, strict=True):
            attention.processor = processor
