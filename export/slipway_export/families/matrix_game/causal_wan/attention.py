"""Attention between latent frames, and the rotation of queries and keys by their positions.

Queries, keys and values are [batch, frames, tokens, heads, size]; the keyboard's keys and values are [batch,
frames, heads, size]. Three functions define what attends to what within the visible frames: all tokens to all
(:func:`over_tokens`), each token to the same place in other frames (:func:`over_sites`), each token to one
key per frame (:func:`over_rows`). An :class:`Attend` decides which frames are visible and calls one of the
functions with the keys of those frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

Over = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Function of queries, keys, values and a mask of present key frames, [batch, frames]."""


class Attend(Protocol):
    """Callback that attends from the queries of some frames to keys and values of their visible frames."""

    def __call__(self, name: str, over: Over, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from the queries to the visible frames.

        Args:
            name: Name of the attention: ``self``, ``mouse`` or ``keyboard``, and its block, as ``self_00``.
            over: Function that defines what attends to what.
            q: Queries of the current frames.
            k: Keys of the current frames, rotated.
            v: Values of the current frames.

        Returns:
            Output of the attention, same shape as `q`.
        """


def over_tokens(q: Tensor, k: Tensor, v: Tensor, there: Tensor) -> Tensor:
    """Attend from every token to every token of the present frames."""
    frames, tokens = q.shape[1:3]
    seen = there[:, :, None].expand(-1, -1, tokens).flatten(1)
    out = _attention(q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2), seen)
    return torch.unflatten(out, 1, (frames, tokens))


def over_sites(q: Tensor, k: Tensor, v: Tensor, there: Tensor) -> Tensor:
    """Attend from every token to the tokens at its place in the present frames."""
    batch, tokens = q.shape[0], q.shape[2]
    seen = there[:, None].expand(-1, tokens, -1).flatten(0, 1)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    return torch.unflatten(_attention(q, k, v, seen), 0, (batch, tokens)).transpose(1, 2)


def over_rows(q: Tensor, k: Tensor, v: Tensor, there: Tensor) -> Tensor:
    """Attend from every token to the one key of each present frame."""
    return torch.unflatten(_attention(q.flatten(1, 2), k, v, there), 1, q.shape[1:3])


def _attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Attend from q [batch, queries, heads, size] to k [batch, keys, heads, size] by mask [batch, keys]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None]).transpose(1, 2)


class RmsNorm(nn.Module):
    """Norm by the root of the mean square, over the last dimension and in float32.

    Args:
        dim: Size of the last dimension.
        eps: Value added to the mean.
        scaled: True if the weight is applied; upstream ignores the weight of the action module's norms.
    """

    def __init__(self, dim: int, eps: float = 1e-6, *, scaled: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps, self.scaled = eps, scaled

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x`; the result has its shape and dtype."""
        full = x.float()
        normed = (full * torch.rsqrt(full.pow(2).mean(dim=-1, keepdim=True) + self.eps)).to(x.dtype)
        return normed * self.weight if self.scaled else normed


class Attention(nn.Module):
    """Projections of an attention that normalizes queries and keys before it splits them into heads.

    Args:
        dim: Width of the residual stream.
        heads: Number of heads.
        eps: Epsilon of the norms.
    """

    def __init__(self, dim: int, heads: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = RmsNorm(dim, eps), RmsNorm(dim, eps)

    def queries(self, x: Tensor) -> Tensor:
        """Return the queries of `x` [..., dim], [..., heads, size]."""
        return self._split(self.norm_q(self.q(x)))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of `x` [..., dim], [..., heads, size] each."""
        return self._split(self.norm_k(self.k(x))), self._split(self.v(x))

    def project(self, attended: Tensor) -> Tensor:
        """Project the attention's output [..., heads, size] to [..., dim]."""
        out: Tensor = self.o(attended.flatten(-2))
        return out

    def _split(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.heads, -1))


class Rotation(nn.Module):
    """Tables of the rotation angles of channel pairs by position: position / theta^(2 j / dim).

    They are computed in float64, as upstream's are, so that distant positions are exact to float32.

    Args:
        dim: Number of rotated channels; even.
        theta: Base of the frequencies.
        positions: Number of rows in the tables.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, dim: int, theta: float, positions: int) -> None:
        super().__init__()
        # No checkpoint has the tables, so they need real memory even if the network is built on device
        # "meta".
        pairs = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu")
        places = torch.arange(positions, dtype=torch.float64, device="cpu")
        angles = torch.outer(places, theta ** (-pairs / dim))
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin, [..., dim / 2] each, of positions [...], int64."""
        return self.cos[positions], self.sin[positions]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first channels of `x` in adjacent pairs and leave the others unchanged.

    Args:
        x: Queries or keys, [..., size].
        cos: Cosines of the angles, [..., pairs]; they broadcast against `x`.
        sin: Sines of the angles, same shape as `cos`.
    """
    turned, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    real, imaginary = torch.unflatten(turned.float(), -1, (-1, 2)).unbind(-1)
    pairs = torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)
    out = pairs.flatten(-2).to(x.dtype)
    return torch.cat([out, rest], dim=-1) if x.shape[-1] > 2 * cos.shape[-1] else out
