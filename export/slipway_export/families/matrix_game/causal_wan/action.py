"""Action module, which applies the mouse and the keyboard to the tokens of a latent frame.

A latent frame receives the actions of the twelve video frames before its own (`windows`). The mouse input
joins each token in an attention over time at that token's place. The keyboard input becomes one key and value
per frame, to which the tokens attend.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from slipway_export.families.matrix_game.causal_wan.attention import (
    Attend,
    RmsNorm,
    over_rows,
    over_sites,
    rotate,
)
from slipway_export.families.matrix_game.causal_wan.config import ActionConfig


class ActionModule(nn.Module):
    """Module that adds the actions to the tokens.

    Upstream named `mouse_attn_q`; it makes the queries of the keyboard's attention.

    Args:
        config: Sizes of the module.
    """

    def __init__(self, config: ActionConfig) -> None:
        super().__init__()
        self.config = config
        dim, hidden = config.img_hidden_size, config.hidden_size
        self.keyboard_embed = nn.Sequential(
            nn.Linear(config.keyboard_dim_in, hidden), nn.SiLU(), nn.Linear(hidden, hidden)
        )
        if config.enable_mouse:
            width = config.mouse_hidden_dim
            self.mouse_mlp = nn.Sequential(
                nn.Linear(config.mouse_dim_in * config.window_rows + dim, width),
                nn.GELU(approximate="tanh"),
                nn.Linear(width, width),
                nn.LayerNorm(width),
            )
            self.t_qkv = nn.Linear(width, 3 * width, bias=False)
            self.img_attn_q_norm, self.img_attn_k_norm = self._norm(width), self._norm(width)
            self.proj_mouse = nn.Linear(width, dim, bias=False)
        width = config.keyboard_hidden_dim
        self.key_attn_q_norm, self.key_attn_k_norm = self._norm(width), self._norm(width)
        self.mouse_attn_q = nn.Linear(dim, width, bias=False)
        self.keyboard_attn_kv = nn.Linear(hidden * config.window_rows, 2 * width, bias=False)
        self.proj_keyboard = nn.Linear(width, dim, bias=False)

    def forward(
        self,
        x: Tensor,
        mouse_rows: Tensor | None,
        keyboard_rows: Tensor,
        angles: tuple[Tensor, Tensor],
        attend: Attend,
        block: str,
    ) -> Tensor:
        """Add the actions to the tokens.

        Args:
            x: Tokens, [batch, frames, tokens, dim].
            mouse_rows: Mouse input, [batch, rows(frames), mouse_dim_in], beginning 12 video frames before the
                first latent frame's own; None without a mouse.
            keyboard_rows: Keyboard input, [batch, rows(frames), keyboard_dim_in].
            angles: Cos and sin of the frames' positions, [batch or 1, frames, pairs].
            attend: Attention over the visible frames, see :class:`Attend`.
            block: Number of the network's block, for the names of the attentions.

        Returns:
            Tokens with the actions, same shape and dtype as `x`.
        """
        if mouse_rows is not None:
            x = x + self._mouse(x, mouse_rows, angles, attend, block)
        return x + self._keyboard(x, keyboard_rows, angles, attend, block)

    def _mouse(
        self, x: Tensor, rows: Tensor, angles: tuple[Tensor, Tensor], attend: Attend, block: str
    ) -> Tensor:
        """Return the change of the tokens by the mouse."""
        windows = self.windows(rows, x.shape[1])[:, :, None].expand(-1, -1, x.shape[2], -1)
        hidden = self.mouse_mlp(torch.cat([x, windows], dim=-1))
        q, k, v = self.t_qkv(hidden).unflatten(-1, (3, self.config.heads_num, -1)).unbind(-3)
        cos, sin = (each[:, :, None, None] for each in angles)
        q, k = rotate(self.img_attn_q_norm(q), cos, sin), rotate(self.img_attn_k_norm(k), cos, sin)
        out: Tensor = self.proj_mouse(attend(f"mouse_{block}", over_sites, q, k, v).flatten(-2))
        return out

    def _keyboard(
        self, x: Tensor, rows: Tensor, angles: tuple[Tensor, Tensor], attend: Attend, block: str
    ) -> Tensor:
        """Return the change of the tokens by the keyboard."""
        windows = self.windows(self.keyboard_embed(rows), x.shape[1])
        k, v = self.keyboard_attn_kv(windows).unflatten(-1, (2, self.config.heads_num, -1)).unbind(-3)
        q = self.mouse_attn_q(x).unflatten(-1, (self.config.heads_num, -1))
        cos, sin = angles
        q = rotate(self.key_attn_q_norm(q), cos[:, :, None, None], sin[:, :, None, None])
        k = rotate(self.key_attn_k_norm(k), cos[:, :, None], sin[:, :, None])
        out: Tensor = self.proj_keyboard(attend(f"keyboard_{block}", over_rows, q, k, v).flatten(-2))
        return out

    def windows(self, rows: Tensor, frames: int) -> Tensor:
        """Return the concatenated rows that each latent frame receives, [batch, frames, 12 * width]."""
        first = torch.arange(frames, device=rows.device) * self.config.vae_time_compression_ratio
        places = first[:, None] + torch.arange(self.config.window_rows, device=rows.device)
        return rows[:, places].flatten(2)

    def _norm(self, width: int) -> RmsNorm:
        return RmsNorm(width // self.config.heads_num, scaled=False)
