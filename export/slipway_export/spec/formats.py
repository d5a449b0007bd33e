"""Number formats, engines and element types, by which families, graphs and configurations are described."""

from __future__ import annotations

from enum import StrEnum

DEFAULT_BUDGET = 300.0
"""Default limit for the verification of an export on the exporting machine, in seconds."""


class Precision(StrEnum):
    """Number format of a graph's weights and arithmetic; its inputs and outputs stay float32.

    ``int8`` quantizes weights per channel and activations per tensor: dynamically for ONNX Runtime, with
    calibrated scales for TensorRT. ``fp8`` (E4M3) does the same for TensorRT alone. ``int4`` quantizes only
    the weights, in blocks, to save memory.
    """

    FP64 = "fp64"
    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"
    INT4 = "int4"

    @property
    def is_quantized(self) -> bool:
        """Whether the graph is made by quantizing the products of a graph in a wider precision."""
        return self in (Precision.INT8, Precision.FP8, Precision.INT4)


# Conv and most other operators accept bfloat16 from opset 22 on. No opset below 17 has been tried.
LOWEST_OPSET = {precision: 22 if precision is Precision.BF16 else 17 for precision in Precision}


class Engine(StrEnum):
    """Runtime that executes a component, and for which its graph is made if it has one.

    ``onnxruntime`` graphs use ONNX Runtime's fused operators. ``tensorrt`` and ``tensorrt-rtx`` graphs use
    only the standard ones, and become engines for data-centre and for workstation GPUs. ``portable`` graphs
    also use only the standard ones and are for any runtime. They have upstream's inputs and outputs where
    upstream has such a file, and Triton serves them with ONNX Runtime. ``torch`` has no graph: PyTorch runs
    the checkpoint's own network.
    """

    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"
    TENSORRT_RTX = "tensorrt-rtx"
    PORTABLE = "portable"
    TORCH = "torch"

    @property
    def backend(self) -> str:
        """Name of the Triton backend that runs the component."""
        return _BACKENDS.get(self, self.value)

    @property
    def is_tensorrt(self) -> bool:
        """Whether the graphs are built into engines of TensorRT or TensorRT-RTX."""
        return self in (Engine.TENSORRT, Engine.TENSORRT_RTX)


_BACKENDS = {Engine.PORTABLE: "onnxruntime", Engine.TORCH: "python", Engine.TENSORRT_RTX: "python"}


class DType(StrEnum):
    """Element type of a tensor, under numpy's name."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT64 = "int64"
    INT32 = "int32"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def triton(self) -> str:
        """Name of the value of Triton's ``DataType`` protobuf enum."""
        return f"TYPE_{self.value.upper().replace('FLOAT', 'FP')}"

    @property
    def is_float(self) -> bool:
        """Whether the type is a floating-point type."""
        return self in (DType.FLOAT32, DType.FLOAT16)

    @property
    def values(self) -> tuple[int, int]:
        """Half-open range of the values with which a tensor of integers or booleans is verified."""
        return (0, 256) if self is DType.UINT8 else (0, 2)
