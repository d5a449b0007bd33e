"""Conversions between OrtValues and torch tensors that share their memory: nothing is copied.

On a CPU both use the same memory of the process, on a GPU the same memory of the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack


def tensor_of(value: Any) -> torch.Tensor:
    """Return an OrtValue as a torch tensor on the same device, without a copy."""
    tensor = from_dlpack(value._ortvalue)
    # ONNX Runtime's DLPack exports booleans as bytes.
    return tensor.view(torch.bool) if value.data_type() == "tensor(bool)" else tensor


def tensor_of_any(given: NDArray[Any] | ort.OrtValue) -> torch.Tensor:
    """Return an array or an OrtValue as a torch tensor; read-only memory of an array is copied."""
    if isinstance(given, ort.OrtValue):
        return tensor_of(given)
    # An array may be a view of read-only memory, which torch does not protect from writes.
    return torch.from_numpy(np.require(given, requirements=["C", "W"]))


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
