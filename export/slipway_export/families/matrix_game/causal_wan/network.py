"""CausalWanModel: a transformer over latent frames with blocks of attention, actions and feed-forward.

Tokens stay [batch, frames, tokens, dim] throughout, so that each frame has its own timestep. An
:class:`Attend` decides which frames attend to which. The keys and values of the world's first picture are
computed once (:meth:`CausalWan.crossing`) and passed to every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipway_export.families.matrix_game.causal_wan.action import ActionModule
from slipway_export.families.matrix_game.causal_wan.attention import (
    Attend,
    Attention,
    Rotation,
    over_tokens,
    rotate,
)
from slipway_export.families.matrix_game.causal_wan.config import CLIP_DIM, PATCH, POSITIONS, Config

THETA = 10_000.0
Angles = tuple[Tensor, Tensor]


class Block(nn.Module):
    """Block of self-attention, attention to the first picture, an optional action module, and feed-forward.

    Args:
        config: Configuration of the network.
        index: Index of the block.
    """

    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        self.name = f"{index:02}"
        self.norm1 = nn.LayerNorm(config.dim, config.eps, elementwise_affine=False)
        self.self_attn = Attention(config.dim, config.num_heads, config.eps)
        self.norm3 = nn.LayerNorm(config.dim, config.eps)
        self.cross_attn = Attention(config.dim, config.num_heads, config.eps)
        self.action_model = ActionModule(config.action) if index in config.action.blocks else None
        self.norm2 = nn.LayerNorm(config.dim, config.eps, elementwise_affine=False)
        self.ffn = nn.Sequential(
            nn.Linear(config.dim, config.ffn_dim),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.ffn_dim, config.dim),
        )
        self.modulation = nn.Parameter(torch.randn(1, 6, config.dim) / config.dim**0.5)

    def forward(
        self,
        x: Tensor,
        modulation: Tensor,
        cross: tuple[Tensor, Tensor],
        angles: Angles,
        actions: tuple[Tensor | None, Tensor, Angles],
        attend: Attend,
    ) -> Tensor:
        """Run the block on the tokens of some latent frames.

        Args:
            x: Tokens, [batch, frames, tokens, dim].
            modulation: Modulation by the timesteps, [batch, frames, 6, dim].
            cross: Keys and values of the first picture, [batch, 257, heads, size].
            angles: Cos and sin of the tokens' positions, [batch or 1, frames, tokens, 1, size / 2].
            actions: Rows of mouse and keyboard, and the angles of the frames, see :class:`ActionModule`.
            attend: Attention over the visible frames, see :class:`Attend`.
        """
        values = (self.modulation[:, None] + modulation).to(x.dtype)
        shift1, scale1, gate1, shift2, scale2, gate2 = values[..., None, :].unbind(2)
        hidden = self.norm1(x) * (1 + scale1) + shift1
        q, (k, v) = self.self_attn.queries(hidden), self.self_attn.keys_values(hidden)
        mixed = attend(f"self_{self.name}", over_tokens, rotate(q, *angles), rotate(k, *angles), v)
        x = x + gate1 * self.self_attn.project(mixed)
        x = x + self._look(self.norm3(x), *cross)
        if self.action_model is not None:
            x = self.action_model(x, *actions, attend, self.name)
        fed: Tensor = self.ffn(self.norm2(x) * (1 + scale2) + shift2)
        return x + gate2 * fed

    def _look(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend to the first picture, whose features have no position."""
        q, k, v = (each.transpose(1, 2) for each in (self.cross_attn.queries(x.flatten(1, 2)), keys, values))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return torch.unflatten(self.cross_attn.project(mixed), 1, x.shape[1:3])


class Head(nn.Module):
    """Output layer: a norm that the timesteps modulate, and the projection to latent pixels."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim, config.eps, elementwise_affine=False)
        self.head = nn.Linear(config.dim, PATCH * PATCH * config.out_dim)
        self.modulation = nn.Parameter(torch.randn(1, 2, config.dim) / config.dim**0.5)

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        """Project tokens [batch, frames, tokens, dim] with the embedded timesteps [batch, frames, dim]."""
        values = (self.modulation[:, None] + embedded[:, :, None]).to(x.dtype)
        shift, scale = values[..., None, :].unbind(2)
        out: Tensor = self.head(self.norm(x) * (1 + scale) + shift)
        return out


class ImageEmbedding(nn.Module):
    """Projection of the first picture's features to the width of the network."""

    def __init__(self, visual_dim: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Sequential(
            nn.LayerNorm(visual_dim),
            nn.Linear(visual_dim, visual_dim),
            nn.GELU(),
            nn.Linear(visual_dim, dim),
            nn.LayerNorm(dim),
        )

    def forward(self, visual_context: Tensor) -> Tensor:
        """Project [batch, tokens, visual_dim] to [batch, tokens, dim]."""
        out: Tensor = self.proj(visual_context)
        return out


class Crossing(nn.Module):
    """Keys and values of the first picture for each block of a network.

    Args:
        img_emb: Image embedding of the network.
        attentions: Cross-attentions of its blocks.
    """

    def __init__(self, img_emb: ImageEmbedding, attentions: Sequence[Attention]) -> None:
        super().__init__()
        self.img_emb, self.attentions = img_emb, nn.ModuleList(attentions)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return next(self.parameters()).dtype

    def forward(self, visual_context: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each block's keys and values of the first picture, [batch, 257, heads, size].

        Args:
            visual_context: Features from CLIP, [batch, 257, 1280].
        """
        context = self.img_emb(visual_context)
        attentions = (each for each in self.attentions if isinstance(each, Attention))
        return [attention.keys_values(context) for attention in attentions]


def time_rotations(config: Config) -> tuple[Rotation, Rotation]:
    """Return the rotations by a frame's position in the world, for self-attention and for action modules."""
    action = config.action
    return (
        Rotation(config.head_dim - 2 * _plane_dim(config), THETA, POSITIONS),
        Rotation(action.rope_dim_list[0], action.rope_theta, POSITIONS),
    )


def _plane_dim(config: Config) -> int:
    """Return the number of a head's channels that rotate by a token's row; as many rotate by its column."""
    return 2 * (config.head_dim // 6)


class CausalWan(nn.Module):
    """Network of Matrix-Game 2.0 with upstream's key names.

    Args:
        config: Sizes of the network.
        visual_dim: Width of the image encoder's features, which no configuration contains.
    """

    def __init__(self, config: Config, visual_dim: int = CLIP_DIM) -> None:
        super().__init__()
        self.config, self.visual_dim = config, visual_dim
        dim, patch = config.dim, (1, PATCH, PATCH)
        self.patch_embedding = nn.Conv3d(config.in_dim, dim, kernel_size=patch, stride=patch)
        self.time_embedding = nn.Sequential(nn.Linear(config.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(Block(config, index) for index in range(config.num_layers))
        self.head = Head(config)
        self.img_emb = ImageEmbedding(visual_dim, dim)
        self.time_rotation, self.action_rotation = time_rotations(config)
        self.plane_rotation = Rotation(_plane_dim(config), THETA, POSITIONS)

    def crossing(self) -> Crossing:
        """Return the parts that compute the first picture's keys and values."""
        return Crossing(self.img_emb, [block.cross_attn for block in self._blocks()])

    def forward(
        self,
        noisy_input: Tensor,
        timestep: Tensor,
        cond_concat: Tensor,
        cross: list[tuple[Tensor, Tensor]],
        rows: tuple[Tensor | None, Tensor],
        positions: Tensor,
        attend: Attend,
    ) -> Tensor:
        """Predict the flow of some latent frames.

        Args:
            noisy_input: Noisy latents, [batch, out_dim, frames, height, width].
            timestep: Timesteps of the frames, [batch, frames], float32, 0 to 1000.
            cond_concat: Mask and latents of the first picture, [batch, in_dim - out_dim, frames, height,
                width].
            cross: Keys and values of each block from :meth:`crossing`.
            rows: Rows of mouse and keyboard, see :class:`ActionModule`.
            positions: Positions of the frames in the world, [batch or 1, frames], int64, 0 to 1023.
            attend: Attention over the visible frames, see :class:`Attend`.

        Returns:
            Predicted flow, same shape as `noisy_input`.
        """
        patches = self.patch_embedding(torch.cat([noisy_input, cond_concat], dim=1))
        height, width = patches.shape[-2:]
        x = patches.flatten(3).permute(0, 2, 3, 1)
        embedded = self.time_embedding(self._sinusoids(timestep).to(x.dtype))
        modulation = self.time_projection(embedded).unflatten(-1, (6, -1))
        angles = self._angles(positions, height, width)
        actions = (*rows, self.action_rotation(positions))
        for block, keys_values in zip(self._blocks(), cross, strict=True):
            x = block(x, modulation, keys_values, angles, actions, attend)
        pixels = torch.unflatten(self.head(x, embedded), 2, (height, width))
        pixels = torch.unflatten(pixels, -1, (PATCH, PATCH, -1))
        # The axes are [batch, frames, height, width, rows of a token, columns of a token, channels].
        return pixels.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _sinusoids(self, timestep: Tensor) -> Tensor:
        """Return [cos | sin] of timestep / 10000^(2 i / freq_dim), [batch, frames, freq_dim], float32.

        The angle is reduced to one turn in float64; in float32 it would be off by 3e-5 at timestep 1000.
        """
        half = self.config.freq_dim // 2
        exponents = torch.arange(half, dtype=torch.float64, device=timestep.device) / half
        angle = timestep.double()[..., None] * torch.pow(THETA, -exponents)
        turn = 2 * math.pi
        within = (angle - turn * torch.floor(angle / turn)).float()
        return torch.cat([within.cos(), within.sin()], dim=-1)

    def _angles(self, positions: Tensor, height: int, width: int) -> Angles:
        """Return cos and sin of the tokens' positions in time and plane, [.., frames, tokens, 1, pairs]."""
        device = positions.device
        axes = zip(
            self.time_rotation(positions),
            self.plane_rotation(torch.arange(height, device=device)),
            self.plane_rotation(torch.arange(width, device=device)),
            strict=True,
        )
        batch, frames = positions.shape
        grid = (batch, frames, height, width, -1)
        cos, sin = (
            torch.cat(
                [t[:, :, None, None].expand(grid), h[:, None].expand(grid), w.expand(grid)], dim=-1
            ).flatten(2, 3)[..., None, :]
            for t, h, w in axes
        )
        return cos, sin
