"""Weights in fp8: the scale of each is found beside it and applied when the weight is read.

ComfyUI and Kijai store `scale_weight`, and later files `weight_scale`: one factor for a tensor, or one for
each row. A file without scales holds the values themselves. Scales of activations are left out, because the
values that they would round stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch

from slipway_export.checkpoint.layouts.computed import widened
from slipway_export.checkpoint.stored_weights import StoredTensor
from slipway_serving.protocol.errors import InvalidRequest

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_SCALES = ("scale_weight", "weight_scale")
_OF_ACTIVATIONS = ("scale_input", "input_scale")
_FORMAT = "comfy_quant"
_FORMATS = ("float8_e4m3fn", "float8_e5m2")
_MARKER = "scaled_fp8"


def with_scales(stored: Mapping[str, StoredTensor], where: str) -> dict[str, StoredTensor]:
    """Return the tensors of a file with those in fp8 as float32 values, and without the scales.

    Args:
        stored: Tensors of the file, by the file's keys or the network's.
        where: Name of the file in messages.

    Raises:
        InvalidRequest: Weights are quantized in another way, or a scale has no weight or another shape.
    """
    found = {key: tensor for key, tensor in stored.items() if key.rpartition(".")[2] != _MARKER}
    for key in [key for key in found if key.endswith(f".{_FORMAT}")]:
        _check_format(found.pop(key), key, where)
    for key in [key for key in found if key.rpartition(".")[2] in _OF_ACTIVATIONS]:
        del found[key]
    scales = {}
    for key in [key for key in found if key.rpartition(".")[2] in _SCALES]:
        scales[key.rpartition(".")[0] + ".weight"] = found.pop(key)
    for key, scale in scales.items():
        _check_scale(found.get(key), scale, where)
    return {
        key: widened(tensor, scales.get(key)) if tensor.dtype in _FP8 else tensor
        for key, tensor in found.items()
    }


def is_fp8(stored: Mapping[str, StoredTensor]) -> bool:
    """Return whether any tensor is stored in fp8."""
    return any(tensor.dtype in _FP8 for tensor in stored.values())


def _check_format(tensor: StoredTensor, key: str, where: str) -> None:
    try:
        named = json.loads(bytes(tensor.read().flatten().tolist())).get("format")
    except (ValueError, AttributeError, TypeError):
        named = "a format that is not stated"
    if named not in _FORMATS:
        raise InvalidRequest(
            f"{where}: {key} must be {' or '.join(_FORMATS)}, got {named}; try the file in bf16, fp16 or"
            " fp8_scaled, with --precision int8 or int4 to quantize the graph"
        )


def _check_scale(weight: StoredTensor | None, scale: StoredTensor, where: str) -> None:
    if weight is None:
        raise InvalidRequest(f"{where}: {scale.key} must have a weight beside it, got none")
    if weight.dtype not in _FP8:
        kind = str(weight.dtype).removeprefix("torch.")
        raise InvalidRequest(
            f"{where}: {weight.key} must be fp8 where {scale.key} is beside it, got {kind}; try the file in"
            " bf16, fp16 or fp8_scaled"
        )
    sizes = [size for size in scale.shape if size != 1]
    if sizes and (sizes != [weight.shape[0]] or scale.shape[0] != weight.shape[0]):
        raise InvalidRequest(
            f"{where}: {scale.key} must be one factor or one for each of {weight.shape[0]} rows, got shape"
            f" {list(scale.shape)}; try the file in bf16, fp16 or fp8_scaled"
        )
