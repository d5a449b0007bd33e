"""FramePack transformer cut for a first-block cache, which reuses the output of its later blocks.

Consecutive steps of a section change little. :class:`Head` runs the embeddings and the first dual-stream
block. :class:`~slipway_export.networks.first_block_cache.Change` measures how much that block's residual on
the latents' tokens differs from that of the last step that was computed in full. If the change is small, the
residual of all other blocks, dual-stream and single-stream, is taken from that step instead of :class:`Tail`;
:class:`Finish` adds it and projects. The rule is that of diffusers' `FirstBlockCacheConfig`: it compares all
tokens of the latents' stream, including history, and none of the stream of picture and text. diffusers caches
the residual of every token of both streams; only the section's own tokens reach the flow, so here only theirs
is cached.

A section's own tokens keep their axes between the graphs, [batch, 9, height / 16, width / 16, dim], from
which each graph derives their number; history is a sequence of tokens before them. Positions pass between the
graphs as the cosines and sines that the head computes, one angle for each pair of channels.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from torch import Tensor, nn

from slipway_export.families.framepack_i2v.network import embedded, fix_embedders, keys_seen, projected

_EMBEDDERS = (
    "x_embedder", "clean_x_embedder", "context_embedder", "image_projection", "time_text_embed", "rope"
)  # fmt: skip


class Head(nn.Module):
    """Graph of the embeddings and the first block."""

    def __init__(self, transformer: HunyuanVideoFramepackTransformer3DModel) -> None:
        super().__init__()
        fix_embedders(transformer)
        first = transformer.transformer_blocks[:1]
        self.transformer = _part(transformer, *_EMBEDDERS, dual=first, single=nn.ModuleList())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the first block on a batch of sections.

        Args:
            *inputs: Inputs of :class:`slipway_export.families.framepack_i2v.network.Transformer`, in its
                order.

        Returns:
            The section's own tokens after the block, `hidden` [batch, 9, height / 16, width / 16, dim], and
            those of history, `history` [batch, tokens, dim]; the block's residual on history and section,
            `residual` [batch, tokens, dim]; `temb` [batch, dim]; picture and text after the block, `context`
            [batch, image_tokens + text_tokens, dim], all float32; `context_mask` [batch, image_tokens +
            text_tokens], int64, ones and then zeros; `rotation_cos` and `rotation_sin` of history and
            section, [tokens, size of a head / 2], float32.
        """
        net: Any = self.transformer
        before, rotations, temb, context, mask = embedded(net, *inputs)
        (block,) = net.transformer_blocks
        after, context = block(before, context, temb.to(before.dtype), keys_seen(before, mask), rotations)
        hidden = after.float()
        residual = hidden - before.float()
        patch = net.config.patch_size
        _, _, frames, height, width = inputs[0].shape
        grid = (frames, height // patch, width // patch)
        own = math.prod(grid)
        cos, sin = (table[:, 0::2] for table in rotations)
        parts = hidden[:, -own:].unflatten(1, grid), hidden[:, :-own]
        return *parts, residual, temb, context.float(), mask, cos, sin


class Tail(nn.Module):
    """Graph of all blocks but the first."""

    def __init__(self, transformer: HunyuanVideoFramepackTransformer3DModel) -> None:
        super().__init__()
        later = transformer.transformer_blocks[1:]
        self.transformer = _part(transformer, dual=later, single=transformer.single_transformer_blocks)

    def forward(
        self,
        hidden: Tensor,
        history: Tensor,
        temb: Tensor,
        context: Tensor,
        context_mask: Tensor,
        rotation_cos: Tensor,
        rotation_sin: Tensor,
    ) -> Tensor:
        """Run the blocks on the outputs of :class:`Head`, which have the names of the arguments.

        Returns:
            Residual of the blocks on the section's own tokens, same shape and dtype as `hidden`.
        """
        net: Any = self.transformer
        blocks = (*net.transformer_blocks, *net.single_transformer_blocks)
        dtype = blocks[0].attn.to_q.weight.dtype
        tokens = torch.cat([history, hidden.flatten(1, 3)], dim=1).to(dtype)
        context, temb = context.to(dtype), temb.to(dtype)
        rotations = tuple(half.repeat_interleave(2, dim=1) for half in (rotation_cos, rotation_sin))
        seen = keys_seen(tokens, context_mask)
        for block in blocks:
            tokens, context = block(tokens, context, temb, seen, rotations)
        own = math.prod(hidden.shape[1:4])
        return tokens[:, -own:].float().reshape(hidden.shape) - hidden


class Finish(nn.Module):
    """Graph of the output norm and the projection of tokens to latents; float32 in every precision."""

    def __init__(self, transformer: HunyuanVideoFramepackTransformer3DModel) -> None:
        super().__init__()
        self.transformer = _part(transformer, "norm_out", "proj_out")

    def forward(self, hidden: Tensor, tail_residual: Tensor, temb: Tensor) -> Tensor:
        """Predict the flow.

        Args:
            hidden: Tokens of the section from :class:`Head`.
            tail_residual: Output of :class:`Tail`, from this step or an earlier one.
            temb: Embedding of time, guidance and pooled text from :class:`Head`.

        Returns:
            Flow, [batch, channels, 9, height / 8, width / 8], float32.
        """
        grid = hidden.shape[1:4]
        return projected(self.transformer, (hidden + tail_residual).flatten(1, 3), temb, grid)


def _part(
    transformer: HunyuanVideoFramepackTransformer3DModel,
    *kept_modules: str,
    dual: nn.ModuleList | None = None,
    single: nn.ModuleList | None = None,
) -> HunyuanVideoFramepackTransformer3DModel:
    """Return a transformer that has only some of another's modules, under the same names.

    Args:
        transformer: Original transformer; it is not changed, and its modules are shared.
        kept_modules: Names of the modules to keep.
        dual: Dual-stream blocks; the attribute is absent if None.
        single: BatchOfOne-stream blocks; the attribute is absent if None.
    """
    part = copy.copy(transformer)
    blocks = {"transformer_blocks": dual, "single_transformer_blocks": single}
    modules = {name: module for name, module in transformer.named_children() if name in kept_modules}
    part._modules = {**modules, **{name: module for name, module in blocks.items() if module is not None}}
    return part
