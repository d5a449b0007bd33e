"""How fast this machine is: a calibration of a second or two before work whose length must be known.

What is measured is what a network's time goes into, products of matrices, in each of the two programs that an
export runs. The other work of the machine counts: a busy one is as slow as it is found.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipway_export.spec import Precision
from slipway_serving.errors import InvalidRequest

DEVICES = ("cpu", "cuda")
# Of a product [rows, width] x [width, 4 * width], as a transformer's wide layer is; GPUs need larger ones.
_WIDTH = {"cpu": 1024, "cuda": 4096}
_LEAST_S = 0.25


@dataclass(frozen=True)
class Speed:
    """Floating-point operations a second in products of matrices; a multiply-add is two.

    Args:
        device: ``cpu`` or ``cuda``.
        pytorch: of PyTorch.
        onnxruntime: of ONNX Runtime.
    """

    device: str
    pytorch: float
    onnxruntime: float


def measured_speed(
    device: str = "cpu", reference: Precision = Precision.FP32, graph: Precision = Precision.FP32
) -> Speed:
    """Measure the speed of this machine, as it is now, by products of matrices.

    Args:
        device: ``cpu`` or ``cuda``, for both programs.
        reference: number format of PyTorch's.
        graph: of ONNX Runtime's; integer ones and bfloat16 are measured as float32.

    Raises:
        InvalidRequest: there is no such device, or one of the two programs cannot use it.
    """
    check_device(device)
    width = _WIDTH[device]
    return Speed(device, _pytorch(device, reference, width), _onnxruntime(device, graph, width))


def measured_call() -> float:
    """Measure what torch takes for an operator that only finds out a shape, seconds; tracing is such."""
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
        InvalidRequest: they cannot, and which of them.
    """
    import onnxruntime
    import torch

    if device not in DEVICES:
        raise InvalidRequest(f"device must be one of {', '.join(DEVICES)}, got {device!r}")
    if device == "cpu":
        return
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
    """Return the mean time of a call; the first, which sets things up, does not count."""
    run()
    started, calls = time.perf_counter(), 0
    while (taken := time.perf_counter() - started) < _LEAST_S or calls < 2:
        run()
        calls += 1
    return taken / calls
