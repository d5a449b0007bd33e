"""Conversions between OrtValues and torch tensors that share their memory: nothing is copied.

On a CPU both use the same memory of the process, on a GPU the same memory of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from slipway_serving.runtime.backends.onnxruntime.signature import Signature


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


def run_forward(
    forward: Callable[..., tuple[torch.Tensor, ...]],
    signature: Signature,
    tensors: Mapping[str, NDArray[Any] | ort.OrtValue],
    given: Sequence[str],
    in_memory: Collection[str],
) -> list[ort.OrtValue]:
    """Run a function of torch tensors on OrtValues, without a copy of what stays on the device.

    Args:
        forward: Function from the signature's inputs to its outputs.
        signature: Tensors of the function.
        tensors: Arrays or OrtValues by input name.
        given: Names of the outputs to return, in this order.
        in_memory: Names of the outputs that must be in CPU memory.
    """
    outputs = forward(*(_tensor(tensors[name]) for name in signature.inputs))
    found = dict(zip(signature.outputs, outputs, strict=True))
    return [value_of(_own_memory(found[name].cpu() if name in in_memory else found[name])) for name in given]


def _tensor(given: NDArray[Any] | ort.OrtValue) -> torch.Tensor:
    if isinstance(given, ort.OrtValue):
        return tensor_of(given)
    # An array may be a view of read-only memory, which torch does not protect from writes.
    return torch.from_numpy(np.require(given, requirements=["C", "W"]))


def _own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor with its own memory; a view would keep a larger tensor alive."""
    if tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


class _BooleanBytes:
    """Boolean tensor for ONNX Runtime's DLPack import, which takes booleans as bytes."""

    dtype = "bool"

    def __init__(self, tensor: torch.Tensor) -> None:
        self._bytes = tensor.view(torch.uint8)

    def __dlpack__(self) -> Any:
        return self._bytes.__dlpack__()
