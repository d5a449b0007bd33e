"""Lowering to ONNX Runtime's fused operators, in place of functions that torch would decompose.

Inside :func:`fused_attention` every call of `torch.nn.functional.scaled_dot_product_attention`, from any
library, becomes `com.microsoft.MultiHeadAttention`, whose memory grows linearly with the tokens. Outside it
the exporter writes the standard operators, which TensorRT's parser reads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@contextlib.contextmanager
def fused_attention() -> Iterator[None]:
    """Lower scaled dot-product attention to ONNX Runtime's fused operator while exporting.

    Callers must look the function up in `torch.nn.functional` when they call it, as diffusers and
    transformers do. A name that was imported from there earlier is not replaced.
    """
    original = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = _fused
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original


def rotate(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    """Rotate neighbouring pairs of channels by position with `com.microsoft.RotaryEmbedding`.

    Args:
        x: Tensor to rotate, [batch, tokens, heads * size].
        cos: Cosines of the angles, [tokens, size / 2].
        sin: Sines of the angles, [tokens, size / 2].
        heads: Number of heads.

    Returns:
        Tensor with the shape and dtype of `x`, for tracing only: its values are not computed.
    """
    start = torch.zeros(1, dtype=torch.int64)
    attributes: dict[str, Any] = {"interleaved": 1, "num_heads": heads, "scale": 1.0}
    return _symbolic("RotaryEmbedding", (x, start, cos, sin), attributes, x, tuple(x.shape))


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Replace torch's function while tracing; inputs and output are [batch, heads, tokens, size]."""
    if dropout_p or query.ndim != 4:
        raise TypeError(
            "fused attention: query must have 4 dimensions and dropout must be 0,"
            f" got {query.ndim} and {dropout_p}"
        )
    batch, heads, tokens, size = query.shape
    if enable_gqa:
        key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    attributes: dict[str, Any] = {
        "num_heads": heads,
        "scale": 1 / math.sqrt(size) if scale is None else float(scale),
    }
    if is_causal:
        attributes["unidirectional"] = 1
    inputs = (*(_joined(x) for x in (query, key, value)), None, None, _bias(attn_mask, query, key))
    shape = (batch, tokens, heads * value.shape[-1])
    out = _symbolic("MultiHeadAttention", inputs, attributes, query, shape)
    return out.view(batch, tokens, heads, value.shape[-1]).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    """Reshape [batch, heads, tokens, size] to [batch, tokens, heads * size], the operator's layout.

    Most callers have just transposed the other way, and the exporter cancels the two transposes.
    """
    return x.transpose(1, 2).flatten(2)


def _bias(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return a mask as the additive bias [1 or batch, 1 or heads, tokens, keys]."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros((), dtype=query.dtype).where(mask, torch.finfo(query.dtype).min)
    mask = mask[(None,) * (4 - mask.ndim)]
    # The operator broadcasts only the first two dimensions, so the last two are expanded here.
    return mask.to(query.dtype).expand(-1, -1, query.shape[2], key.shape[2])


def _symbolic(
    name: str,
    inputs: tuple[Tensor | None, ...],
    attributes: dict[str, Any],
    like: Tensor,
    shape: tuple[int, ...],
) -> Tensor:
    """Call an operator of ONNX Runtime whose result has the dtype of `like` and a known shape."""
    attention: Tensor = torch.onnx.ops.symbolic(
        f"com.microsoft::{name}", inputs, attributes, dtype=like.dtype, shape=shape, version=1
    )
    return attention
