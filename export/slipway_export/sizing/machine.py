"""Calibration of this machine's speed, which takes a second or two, for estimates of later work.

It measures matrix products, which take most of a network's time, in the two programs that an export runs,
PyTorch and ONNX Runtime. Other work on the machine is not excluded, so a busy machine measures as slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipway_export.spec import Precision
from slipway_serving.protocol.distribution import onnxruntime_conflict
from slipway_serving.protocol.errors import InvalidRequest

DEVICES = ("cpu", "cuda")
# Width of a product [width, width] x [width, 4 * width], like a transformer's feed-forward layer. GPUs need a
# larger product to reach their speed.
_WIDTH = {"cpu": 1024, "cuda": 4096}
_LEAST_S = 0.25


@dataclass(frozen=True)
class Speed:
    """Speed of a device in floating-point operations per second of matrix products.

    A multiply-add counts as two operations.

    Args:
        device: Device, ``cpu`` or ``cuda``.
        pytorch: Speed of PyTorch, in operations per second.
        onnxruntime: Speed of ONNX Runtime, in operations per second.
    """

    device: str
    pytorch: float
    onnxruntime: float


def measured_speed(
    device: str = "cpu", reference: Precision = Precision.FP32, graph: Precision = Precision.FP32
) -> Speed:
    """Measure the present speed of this machine with matrix products.

    Args:
        device: Device for both programs, ``cpu`` or ``cuda``.
        reference: Precision of PyTorch's product.
        graph: Precision of ONNX Runtime's product; integers and bfloat16 are measured as float32.

    Raises:
        InvalidRequest: The device does not exist, or one of the two programs cannot use it.
    """
    check_device(device)
    width = _WIDTH[device]
    return Speed(device, _pytorch(device, reference, width), _onnxruntime(device, graph, width))


def measured_call() -> float:
    """Measure the seconds that torch takes per operator on fake tensors, as it does while tracing."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    def layers() -> None:
        for _ in range(20):
            hidden = torch.nn.functional.linear(signal, weight, bias)
            torch.nn.functional.gelu(hidden + bias).view(2, 8, -1).transpose(1, 2)

    with FakeTensorMode(), torch.no_grad():
        signal, weight, bias = torch.empty(16, 64), torch.empty(64, 64), torch.empty(64)
        return _seconds_each(layers) / 100


def check_device(device: str) -> None:
    """Check that PyTorch and ONNX Runtime can run on a device.

    Raises:
        InvalidRequest: One of them cannot use the device. The message names which.
    """
    import onnxruntime
    import torch

    if device not in DEVICES:
        raise InvalidRequest(f"device must be one of {', '.join(DEVICES)}, got {device!r}")
    if device == "cpu":
        return
    if conflict := onnxruntime_conflict():
        raise InvalidRequest(f"device {device}: {conflict}")
    lacking = [] if torch.cuda.is_available() else ["PyTorch"]
    if _provider(device) not in onnxruntime.get_available_providers():
        lacking.append("ONNX Runtime")
    if lacking:
        raise InvalidRequest(
            f"device must be one that PyTorch and ONNX Runtime can use, got {device}, which"
            f" {' and '.join(lacking)} cannot here; try cpu, or their CUDA builds on a machine with a GPU"
        )


def _provider(device: str) -> str:
    return f"{device.upper()}ExecutionProvider"


def _pytorch(device: str, precision: Precision, width: int) -> float:
    """Measure the operations per second of PyTorch on a device."""
    import torch

    kind = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16, Precision.FP64: torch.float64}
    dtype = kind.get(precision, torch.float32)
    left = torch.ones(width, width, dtype=dtype, device=device)
    right = torch.ones(4 * width, width, dtype=dtype, device=device)

    def product() -> None:
        torch.nn.functional.linear(left, right)
        if device == "cuda":
            torch.cuda.synchronize()

    return 8 * width**3 / _seconds_each(product)


def _onnxruntime(device: str, precision: Precision, width: int) -> float:
    """Measure the operations per second of ONNX Runtime on a device."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    half = precision is Precision.FP16
    double = precision is Precision.FP64
    dtype = np.float16 if half else np.float64 if double else np.float32
    kind = TensorProto.FLOAT16 if half else TensorProto.DOUBLE if double else TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["left", "right"], ["out"])],
        "product",
        [helper.make_tensor_value_info("left", kind, [width, width])],
        [helper.make_tensor_value_info("out", kind, [width, 4 * width])],
        [numpy_helper.from_array(np.ones((width, 4 * width), dtype), "right")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[_provider(device)])
    left: dict[str, Any] = {"left": np.ones((width, width), dtype)}
    return 8 * width**3 / _seconds_each(lambda: session.run(None, left))


def _seconds_each(run: Callable[[], object]) -> float:
    """Return the mean time of a call in seconds, without the first call, which includes the set-up."""
    run()
    started, calls = time.perf_counter(), 0
    while (taken := time.perf_counter() - started) < _LEAST_S or calls < 2:
        run()
        calls += 1
    return taken / calls
