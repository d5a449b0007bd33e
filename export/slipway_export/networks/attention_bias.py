"""Attention masks as extra channels of queries and keys, so that attention needs no mask input.

A mask is added to the products of queries and keys, and extra channels add to these products too. Without a
mask, runtimes compute attention in memory that grows linearly with the tokens; with one, they store all
products. On the CPU, ONNX Runtime took 283 MB for 4,000 tokens of 4 heads with a mask of keys, and 25 MB with
8 extra channels (`com.microsoft.MultiHeadAttention`, ONNX Runtime 1.31). The extra channels of visible keys
are 0, so their products do not change.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CHANNELS = 8
"""Number of extra channels; attention kernels expect head sizes that are multiples of 8."""
# Value for a masked key: its weight underflows to 0 in float32 and float16, and products stay finite.
_UNSEEN = -30_000.0


def without_keys(query: Tensor, key: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys whose attention ignores some keys, the same for all queries.

    Args:
        query: Queries, [batch, tokens, heads, size].
        key: Keys, [batch, keys, heads, size].
        seen: Mask of the visible keys, [batch, keys].

    Returns:
        Queries and keys with `CHANNELS` extra channels. Attention must be scaled as for `size` channels.
    """
    hidden = torch.where(seen, 0.0, _UNSEEN).to(key.dtype)[:, :, None, None]
    ones = torch.ones_like(query[..., :1])
    return _with(query, ones), _with(key, hidden.expand(-1, -1, key.shape[2], -1))


def without_later(query: Tensor, key: Tensor, frame: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys whose attention ignores the keys of later frames.

    Args:
        query: Queries, [batch, tokens, heads, size].
        key: Keys, same shape as `query`.
        frame: Frame of each token, [tokens], int64, below `CHANNELS`.

    Returns:
        Queries and keys with `CHANNELS` extra channels. Attention must be scaled as for `size` channels.
    """
    frames = torch.arange(CHANNELS, device=frame.device)
    later = torch.where(frames[None] > frame[:, None], _UNSEEN, 0.0)
    own = frames[None] == frame[:, None]
    shape = (*query.shape[:-1], CHANNELS)
    added = (x.to(query.dtype)[None, :, None, :].expand(shape) for x in (later, own))
    return tuple(torch.cat([x, more], dim=-1) for x, more in zip((query, key), added, strict=True))  # type: ignore[return-value]


def _with(x: Tensor, channel: Tensor) -> Tensor:
    """Append a channel, and zeros for the other extra channels."""
    return torch.cat([x, functional.pad(channel, (0, CHANNELS - 1))], dim=-1)
