"""Wan transformer cut for a first-block cache, which reuses the output of its later blocks.

Consecutive steps of the denoising loop change little. :class:`Head` runs the embeddings and the first block;
:class:`~slipway_export.networks.first_block_cache.Change` measures how much that block's residual differs
from that of the last step that was computed in full. If the change is small, the residual of all other blocks
is taken from that step instead of :class:`Tail`; :class:`Finish` adds it and projects. The result equals that
of diffusers' `FirstBlockCacheConfig`; the decision itself is not in a graph. Tokens keep their three axes
between the graphs, [batch, latent_frames, height / 16, width / 16, width of the network], from which each
graph derives its positions.
"""

from __future__ import annotations

from diffusers import WanTransformer3DModel
from torch import Tensor, nn


class Head(nn.Module):
    """Graph of the embeddings and the first block."""

    def __init__(self, transformer: WanTransformer3DModel) -> None:
        super().__init__()
        self.rope, self.patch_embedding = transformer.rope, transformer.patch_embedding
        # The embedder is float32 in every precision, as in the uncut network.
        self.condition_embedder = transformer.condition_embedder.float()
        self.block = transformer.blocks[0]

    def forward(
        self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Run the first block on a batch of latents.

        Args:
            hidden_states: Noisy latents, [batch, channels, latent_frames, height / 8, width / 8], float32.
            timestep: Timesteps, [batch], float32, 0 to 1000.
            encoder_hidden_states: Embeddings of the prompt, [batch, 512, text_dim], float32.

        Returns:
            The block's output `hidden` and its change of the input, `residual`, both [batch, latent_frames,
            height / 16, width / 16, dim]; `temb` [batch, dim]; `timestep_proj` [batch, 6, dim]; the embedded
            text for the blocks, `context` [batch, 512, dim]. All are float32.
        """
        dtype = self.patch_embedding.weight.dtype
        latents = hidden_states.to(dtype)
        temb, timestep_proj, context, _ = self.condition_embedder(timestep, encoder_hidden_states)
        timestep_proj = timestep_proj.unflatten(1, (6, -1))
        patches = self.patch_embedding(latents)
        grid = patches.shape[2:]
        before = patches.flatten(2).transpose(1, 2).contiguous()
        hidden = self.block(before, context.to(dtype), timestep_proj, self.rope(latents)).float()
        residual = hidden - before.float()
        return hidden.unflatten(1, grid), residual.unflatten(1, grid), temb, timestep_proj, context


class Tail(nn.Module):
    """Graph of all blocks but the first."""

    def __init__(self, transformer: WanTransformer3DModel) -> None:
        super().__init__()
        self.rope, self.patch_size = transformer.rope, transformer.config.patch_size
        self.blocks = transformer.blocks[1:]

    def forward(self, hidden: Tensor, timestep_proj: Tensor, context: Tensor) -> Tensor:
        """Run the blocks on the outputs of :class:`Head`, which have the names of the arguments.

        Returns:
            Residual of the blocks, same shape and dtype as `hidden`.
        """
        batch, *grid, _ = hidden.shape
        dtype = self.blocks[0].ffn.net[2].weight.dtype
        # Only the shape of this tensor matters: the positions follow from the shape of the latents.
        latents = hidden.new_zeros(
            (batch, 1, *(size * patch for size, patch in zip(grid, self.patch_size, strict=True)))
        )
        positions = self.rope(latents)
        tokens = hidden.flatten(1, 3).to(dtype)
        for block in self.blocks:
            tokens = block(tokens, context.to(dtype), timestep_proj, positions)
        return tokens.float().reshape(hidden.shape) - hidden


class Finish(nn.Module):
    """Graph of the output norm and the projection of tokens to latents; float32 in every precision."""

    def __init__(self, transformer: WanTransformer3DModel) -> None:
        super().__init__()
        self.norm_out, self.proj_out = transformer.norm_out, transformer.proj_out
        self.scale_shift_table, self.patch_size = (
            transformer.scale_shift_table,
            transformer.config.patch_size,
        )

    def forward(self, hidden: Tensor, tail_residual: Tensor, temb: Tensor) -> Tensor:
        """Predict the flow.

        Args:
            hidden: Output of the first block from :class:`Head`.
            tail_residual: Output of :class:`Tail`, from this step or an earlier one.
            temb: Embedding of the timestep from :class:`Head`.

        Returns:
            Flow, [batch, channels, latent_frames, height / 8, width / 8], float32.
        """
        batch, *grid, _ = hidden.shape
        shift, scale = (self.scale_shift_table + temb.unsqueeze(1)).chunk(2, dim=1)
        tokens = (hidden + tail_residual).flatten(1, 3)
        flow = self.proj_out(self.norm_out(tokens) * (1 + scale) + shift)
        # The axes are [batch, frames, rows, columns, patch frames, patch rows, patch columns, channels].
        flow = flow.reshape(batch, *grid, *self.patch_size, -1).permute(0, 7, 1, 4, 2, 5, 3, 6)
        sample: Tensor = flow.flatten(6, 7).flatten(4, 5).flatten(2, 3)
        return sample
