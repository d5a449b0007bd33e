"""Attention between latent frames, and the rotation of queries and keys by their positions.

Queries, keys and values are [batch, frames, tokens, heads, size], those of the keyboard [batch, frames,
heads, size]. Three functions say who attends to whom within the frames that are seen: all tokens to all
(:func:`over_tokens`), each token to the same place in other frames (:func:`over_sites`), each token to one
key of a frame (:func:`over_rows`). Which frames are seen is not theirs to know: an :class:`Attend` calls
them with the keys of those frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

Over = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Queries, keys, values, and which frames of the keys are there [batch, frames], to what the queries get."""


class Attend(Protocol):
    """Brings the queries of some frames together with the keys and values of the frames that they see."""

    def __call__(self, name: str, over: Over, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend.

        Args:
            name: of the attention: ``self``, ``mouse`` or ``keyboard``, and its block, as ``self_00``.
            over: who attends to whom.
            q: queries of the frames that are run.
            k: their keys, rotated.
            v: their values.

        Returns:
            Shape of `q`.
        """


def over_tokens(q: Tensor, k: Tensor, v: Tensor, there: Tensor) -> Tensor:
    """Attend from every token to every token of the frames that are there."""
    frames, tokens = q.shape[1:3]
    seen = there[:, :, None].expand(-1, -1, tokens).flatten(1)
    out = _attention(q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2), seen)
    return torch.unflatten(out, 1, (frames, tokens))


def over_sites(q: Tensor, k: Tensor, v: Tensor, there: Tensor) -> Tensor:
    """Attend from every token to the tokens at its place in the frames that are there."""
    batch, tokens = q.shape[0], q.shape[2]
    seen = there[:, None].expand(-1, tokens, -1).flatten(0, 1)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    return torch.unflatten(_attention(q, k, v, seen), 0, (batch, tokens)).transpose(1, 2)


def over_rows(q: Tensor, k: Tensor, v: Tensor, there: Tensor) -> Tensor:
    """Attend from every token to the one key of each frame that is there."""
    return torch.unflatten(_attention(q.flatten(1, 2), k, v, there), 1, q.shape[1:3])


def _attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Attend from [batch, queries, heads, size] to [batch, keys, heads, size] where seen [batch, keys]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None]).transpose(1, 2)


class RmsNorm(nn.Module):
    """Norm by the root of the mean square, over the last dimension and in float32.

    Args:
        dim: of the last dimension.
        eps: added to the mean.
        scaled: whether the weight is used; the action module's norms have one that upstream ignores.
    """

    def __init__(self, dim: int, eps: float = 1e-6, *, scaled: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps, self.scaled = eps, scaled

    def forward(self, x: Tensor) -> Tensor:
        """Normalize: shape and dtype of `x`."""
        full = x.float()
        normed = (full * torch.rsqrt(full.pow(2).mean(dim=-1, keepdim=True) + self.eps)).to(x.dtype)
        return normed * self.weight if self.scaled else normed


class Attention(nn.Module):
    """Projections of an attention whose queries and keys are normalized before they are cut into heads.

    Args:
        dim: of the residual stream.
        heads: number of heads.
        eps: of the norms.
    """

    def __init__(self, dim: int, heads: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = RmsNorm(dim, eps), RmsNorm(dim, eps)

    def queries(self, x: Tensor) -> Tensor:
        """Return [..., heads, size] of [..., dim]."""
        return self._split(self.norm_q(self.q(x)))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return [..., heads, size] each of [..., dim]."""
        return self._split(self.norm_k(self.k(x))), self._split(self.v(x))

    def project(self, attended: Tensor) -> Tensor:
        """Return [..., dim] of [..., heads, size]."""
        out: Tensor = self.o(attended.flatten(-2))
        return out

    def _split(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.heads, -1))


class Rotation(nn.Module):
    """Tables of the angles that positions turn pairs of channels by: position / theta^(2 j / dim).

    They are made in float64, as upstream's are, so that far positions are exact to float32.

    Args:
        dim: channels that are turned; even.
        theta: base of the frequencies.
        positions: rows of the tables.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, dim: int, theta: float, positions: int) -> None:
        super().__init__()
        # On the CPU where the network around is built without memory too: no checkpoint has the tables.
        pairs = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu")
        places = torch.arange(positions, dtype=torch.float64, device="cpu")
        angles = torch.outer(places, theta ** (-pairs / dim))
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin, [..., dim / 2], of positions [...], int64."""
        return self.cos[positions], self.sin[positions]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first channels of `x`, in neighbouring pairs; the others stay.

    Args:
        x: [..., size].
        cos: [..., pairs], that broadcasts against `x`.
        sin: of the same shape.
    """
    turned, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    real, imaginary = torch.unflatten(turned.float(), -1, (-1, 2)).unbind(-1)
    pairs = torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)
    out = pairs.flatten(-2).to(x.dtype)
    return torch.cat([out, rest], dim=-1) if x.shape[-1] > 2 * cos.shape[-1] else out
