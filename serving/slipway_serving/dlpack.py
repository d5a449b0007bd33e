"""The memory of an OrtValue as torch sees it, and that of a tensor as ONNX Runtime does: nothing is copied.

On a CPU both are the same memory of the process, on a GPU the same of the device.
"""

from __future__ import annotations

from typing import Any

import onnxruntime as ort
import torch
from torch.utils.dlpack import from_dlpack


def tensor_of(value: Any) -> torch.Tensor:
    """Return an OrtValue's memory as torch sees it, on whichever device it lies."""
    tensor = from_dlpack(value._ortvalue)
    # Truth values travel as bytes.
    return tensor.view(torch.bool) if value.data_type() == "tensor(bool)" else tensor


def value_of(tensor: torch.Tensor) -> Any:
    """Return a contiguous tensor's memory as an OrtValue; torch's work on it is done by then."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
    return ort.OrtValue.from_dlpack(_Truths(tensor) if tensor.dtype is torch.bool else tensor)


class _Truths:
    """Truth values for ONNX Runtime, which takes them as bytes."""

    dtype = "bool"

    def __init__(self, tensor: torch.Tensor) -> None:
        self._bytes = tensor.view(torch.uint8)

    def __dlpack__(self) -> Any:
        return self._bytes.__dlpack__()
