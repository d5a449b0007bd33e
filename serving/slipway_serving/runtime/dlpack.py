"""Conversions between OrtValues and torch tensors that share their memory: nothing is copied.

On a CPU both use the same memory of the process, on a GPU the same memory of the device.
"""

from __future__ import annotations

from typing import Any

import onnxruntime as ort
import torch
from torch.utils.dlpack import from_dlpack


def tensor_of(value: Any) -> torch.Tensor:
    """Return an OrtValue as a torch tensor on the same device, without a copy."""
    tensor = from_dlpack(value._ortvalue)
    # ONNX Runtime's DLPack exports booleans as bytes.
    return tensor.view(torch.bool) if value.data_type() == "tensor(bool)" else tensor


def value_of(tensor: torch.Tensor) -> Any:
    """Return a contiguous tensor as an OrtValue without a copy, after torch's pending work on it is done."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
    return ort.OrtValue.from_dlpack(_BooleanBytes(tensor) if tensor.dtype is torch.bool else tensor)


class _BooleanBytes:
    """Boolean tensor for ONNX Runtime's DLPack import, which takes booleans as bytes."""

    dtype = "bool"

    def __init__(self, tensor: torch.Tensor) -> None:
        self._bytes = tensor.view(torch.uint8)

    def __dlpack__(self) -> Any:
        return self._bytes.__dlpack__()
