"""Which errors mean that a process cannot use its device again, by the texts of PyTorch and ONNX Runtime."""

from __future__ import annotations

import pytest

from slipway_serving.runtime.lost_device import is_device_lost

LOST = [
    "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later",
    "CUDA error: device-side assert triggered",
    "while running MatMul node: CUDA failure 719: unspecified launch failure ; GPU=0",
]
KEPT = [
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB",
    "CUDA failure 2: out of memory ; GPU=0",
    "a device-side assert triggered",
]


@pytest.mark.parametrize(("text", "lost"), [*((text, True) for text in LOST), *((t, False) for t in KEPT)])
def test_device_is_lost_by_errors_that_cuda_keeps_alone(text: str, lost: bool) -> None:
    assert is_device_lost(RuntimeError(text)) is lost
