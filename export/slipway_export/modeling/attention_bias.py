"""Masks of attention as channels of queries and keys, so that attention needs no mask.

A mask is added to the products of queries and keys; so is what a few channels more give. Runtimes compute
attention without a mask in memory that grows linearly with the tokens, and with one they write all products
down: ONNX Runtime's CPU took 283 MB for 4,000 tokens of 4 heads with a mask of keys and 25 MB with 8 channels
more (`com.microsoft.MultiHeadAttention`, ONNX Runtime 1.31). The channels of keys that are seen are 0, so the
products are what they were.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CHANNELS = 8
"""Channels more: kernels of attention want head sizes that are multiples of 8."""
# Of a key that is not seen: its weight underflows to 0 in float32 and float16, and products stay finite.
_UNSEEN = -30_000.0


def without_keys(query: Tensor, key: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys whose attention leaves keys out, for every query alike.

    Args:
        query: [batch, tokens, heads, size].
        key: [batch, keys, heads, size].
        seen: [batch, keys], whether a key is seen.

    Returns:
        Both with `CHANNELS` more. Attention is to be scaled as that of `size` channels.
    """
    hidden = torch.where(seen, 0.0, _UNSEEN).to(key.dtype)[:, :, None, None]
    ones = torch.ones_like(query[..., :1])
    return _with(query, ones), _with(key, hidden.expand(-1, -1, key.shape[2], -1))


def without_later(query: Tensor, key: Tensor, frame: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys whose attention leaves the keys of later frames out.

    Args:
        query: [batch, tokens, heads, size].
        key: of the same shape.
        frame: [tokens], int64, the frame of each token, below `CHANNELS`.

    Returns:
        Both with `CHANNELS` more. Attention is to be scaled as that of `size` channels.
    """
    frames = torch.arange(CHANNELS, device=frame.device)
    later = torch.where(frames[None] > frame[:, None], _UNSEEN, 0.0)
    own = frames[None] == frame[:, None]
    shape = (*query.shape[:-1], CHANNELS)
    added = (x.to(query.dtype)[None, :, None, :].expand(shape) for x in (later, own))
    return tuple(torch.cat([x, more], dim=-1) for x, more in zip((query, key), added, strict=True))  # type: ignore[return-value]


def _with(x: Tensor, channel: Tensor) -> Tensor:
    """Append a channel, and zeros."""
    return torch.cat([x, functional.pad(channel, (0, CHANNELS - 1))], dim=-1)
