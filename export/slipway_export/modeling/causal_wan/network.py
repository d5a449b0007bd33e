"""CausalWanModel: tokens of latent frames through blocks of attention, actions and feed-forward.

Tokens stay [batch, frames, tokens, dim] throughout, so that each frame has a timestep of its own. Which
frames see which is left to an :class:`Attend`; keys and values of the picture that the world began with are
made once (:meth:`CausalWan.crossing`) and given to every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipway_export.modeling.causal_wan.action import ActionModule
from slipway_export.modeling.causal_wan.attention import Attend, Attention, Rotation, over_tokens, rotate
from slipway_export.modeling.causal_wan.config import CLIP_DIM, PATCH, POSITIONS, Config

THETA = 10_000.0
Angles = tuple[Tensor, Tensor]


class Block(nn.Module):
    """Self-attention, attention to the first picture, actions in the blocks that have them, feed-forward.

    Args:
        config: of the network.
        index: of the block.
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
        """Run the block.

        Args:
            x: [batch, frames, tokens, dim].
            modulation: of the timesteps, [batch, frames, 6, dim].
            cross: keys and values of the first picture, [batch, 257, heads, size].
            angles: of the tokens' positions, [batch or 1, frames, tokens, 1, size / 2].
            actions: rows of mouse and keyboard, and the angles of the frames, see :class:`ActionModule`.
            attend: see :class:`Attend`.
        """
        told = (self.modulation[:, None] + modulation).to(x.dtype)
        shift1, scale1, gate1, shift2, scale2, gate2 = told[..., None, :].unbind(2)
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
    """Final norm, modulated by the timesteps, and the projection to latent pixels."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim, config.eps, elementwise_affine=False)
        self.head = nn.Linear(config.dim, PATCH * PATCH * config.out_dim)
        self.modulation = nn.Parameter(torch.randn(1, 2, config.dim) / config.dim**0.5)

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        """Project [batch, frames, tokens, dim], with the embedded timesteps [batch, frames, dim]."""
        told = (self.modulation[:, None] + embedded[:, :, None]).to(x.dtype)
        shift, scale = told[..., None, :].unbind(2)
        out: Tensor = self.head(self.norm(x) * (1 + scale) + shift)
        return out


class ImageEmbedding(nn.Module):
    """Features of the first picture to the width of the network."""

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
        """Embed: [batch, tokens, visual_dim] to [batch, tokens, dim]."""
        out: Tensor = self.proj(visual_context)
        return out


class Crossing(nn.Module):
    """What each block of a network sees of the first picture.

    Args:
        img_emb: of the network.
        attentions: of its blocks.
    """

    def __init__(self, img_emb: ImageEmbedding, attentions: Sequence[Attention]) -> None:
        super().__init__()
        self.img_emb, self.attentions = img_emb, nn.ModuleList(attentions)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self.parameters()).dtype

    def forward(self, visual_context: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each block's keys and values of the first picture, [batch, 257, heads, size].

        Args:
            visual_context: CLIP's features, [batch, 257, 1280].
        """
        context = self.img_emb(visual_context)
        attentions = (each for each in self.attentions if isinstance(each, Attention))
        return [attention.keys_values(context) for attention in attentions]


def time_rotations(config: Config) -> tuple[Rotation, Rotation]:
    """Return what turns by a frame's place in the world: in self-attention, and in the action modules."""
    action = config.action
    return (
        Rotation(config.head_dim - 2 * _plane_dim(config), THETA, POSITIONS),
        Rotation(action.rope_dim_list[0], action.rope_theta, POSITIONS),
    )


def _plane_dim(config: Config) -> int:
    """Return how many channels of a head are turned by a token's row, and as many by its column."""
    return 2 * (config.head_dim // 6)


class CausalWan(nn.Module):
    """The network, with upstream's key names.

    Args:
        config: its sizes.
        visual_dim: width of the image encoder's features, which no configuration has.
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
        """Return the parts that make what the blocks see of the first picture."""
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
            noisy_input: [batch, out_dim, frames, height, width].
            timestep: [batch, frames], float32, 0 to 1000.
            cond_concat: [batch, in_dim - out_dim, frames, height, width].
            cross: of :meth:`crossing`.
            rows: of mouse and keyboard, see :class:`ActionModule`.
            positions: of the frames in the world, [batch or 1, frames], int64, 0 to 1023.
            attend: see :class:`Attend`.

        Returns:
            Shape of `noisy_input`.
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
        # [batch, frames, height, width, rows, columns, channels]: a token's pixels go side by side.
        return pixels.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _sinusoids(self, timestep: Tensor) -> Tensor:
        """Return [cos | sin] of timestep / 10000^(2 i / freq_dim), [batch, frames, freq_dim], float32.

        The angle is brought within one turn in float64: at 1000 float32 would be off by 3e-5.
        """
        half = self.config.freq_dim // 2
        exponents = torch.arange(half, dtype=torch.float64, device=timestep.device) / half
        angle = timestep.double()[..., None] * torch.pow(THETA, -exponents)
        turn = 2 * math.pi
        within = (angle - turn * torch.floor(angle / turn)).float()
        return torch.cat([within.cos(), within.sin()], dim=-1)

    def _angles(self, positions: Tensor, height: int, width: int) -> Angles:
        """Return cos and sin of the tokens' places in time and plane, [.., frames, tokens, 1, pairs]."""
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
