"""Quantization of the weights of linear layers with torchao, when a network is loaded.

It changes only the linear layers that the network's description allows. Embeddings, convolutions and the
layers that an export keeps in float (``keep_float``) stay unchanged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from slipway_serving.protocol.distribution import install_hint
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.torch_engine.options import Weights

GROUP = 32
"""Number of int4 weights that share a scale, as in int4 ONNX graphs."""


def quantize(module: nn.Module, weights: Weights, products: Collection[str], device: torch.device) -> int:
    """Quantize the linear layers of a network in place.

    Args:
        module: Network on the CPU; each layer is moved to the device before it is quantized.
        weights: Format of the weights, a quantized one.
        products: Paths of the linear layers that may be quantized.
        device: Device that will hold the weights.

    Returns:
        Number of layers that were quantized.

    Raises:
        InvalidRequest: The package torchao is not installed, or there is no layer to quantize.
    """
    try:
        from torchao.quantization import quantize_
    except ModuleNotFoundError:
        raise InvalidRequest(
            f"weights must be bf16 or left out where torchao is not installed, got {weights.value}; try"
            f" {install_hint('torch')}"
        ) from None
    divisor = GROUP if weights is Weights.INT4 else 1
    wanted = {
        path
        for path, part in module.named_modules()
        if path in products and isinstance(part, nn.Linear) and part.in_features % divisor == 0
    }
    if not wanted:
        raise InvalidRequest(
            f"weights {weights.value} must find linear layers to quantize, with input sizes in multiples of"
            f" {divisor}, got none; try without --weights"
        )
    # torchao calls the filter with each layer and its path in the network.
    quantize_(module, _recipe(weights, device), lambda _, path: path in wanted, device=device)
    return len(wanted)


def _recipe(weights: Weights, device: torch.device) -> Any:
    """Return torchao's configuration for a format of weights on a device."""
    from torchao import quantization
    from torchao.quantization.granularity import PerGroup, PerRow

    if weights is Weights.INT8:
        return quantization.Int8WeightOnlyConfig()
    if weights is Weights.FP8:
        return quantization.Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
    if device.type == "cuda":
        # This packing uses torch's own kernel; the others need a library for each kind of GPU.
        return quantization.Int4WeightOnlyConfig(group_size=GROUP, int4_packing_format="tile_packed_to_4d")
    return quantization.IntxWeightOnlyConfig(
        weight_dtype=torch.int4,  # type: ignore[attr-defined]
        granularity=PerGroup(GROUP),
    )
