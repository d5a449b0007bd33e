"""A network of two numbers, y = 2 x + 1, as a description, in PyTorch and as an ONNX graph."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from torch import nn

from slipway_export.spec import Axis, Component, DType, Precision, TensorSpec, Tolerance

BOUND = Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.9999)


def linear(*, dtype: DType = DType.FLOAT32, width: int = 3) -> Component:
    """Describe y = 2 x + 1 of rows, and how many rows there are."""

    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((1,), 2.0))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * self.weight + 1, torch.tensor([len(x)])

    return Component(
        "line",
        (TensorSpec("x", DType.FLOAT32, ("rows", 3)),),
        (TensorSpec("y", dtype, ("rows", width)), TensorSpec("count", DType.INT64, (1,), exact=True)),
        (Axis("rows", 1, 4, 8),),
        lambda *_: Line(),
        {Precision.FP32: BOUND, Precision.BF16: Tolerance(0.1, 0.01, 0.99)},
    )


def write_graph(path: Path, weight: float = 2.0, bfloat16: bool = False) -> Path:
    """Write the graph of :func:`linear`."""
    kind = onnx.TensorProto.BFLOAT16 if bfloat16 else onnx.TensorProto.FLOAT
    values = {"weight": weight, "one": 1.0}
    weights = [onnx.helper.make_tensor(name, kind, [1], [value]) for name, value in values.items()]
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["own"], to=kind),
        onnx.helper.make_node("Mul", ["own", "weight"], ["scaled"]),
        onnx.helper.make_node("Constant", [], ["more"], value=onnx.helper.make_tensor("c", kind, [1], [1.0])),
        onnx.helper.make_node("Add", ["scaled", "more"], ["sum"]),
        onnx.helper.make_node("Cast", ["sum"], ["y"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Shape", ["x"], ["count"], start=0, end=1),
    ]
    tensor = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "line",
        [tensor("x", onnx.TensorProto.FLOAT, ["rows", 3])],
        [tensor("y", onnx.TensorProto.FLOAT, ["rows", 3]), tensor("count", onnx.TensorProto.INT64, [1])],
        weights,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, path)
    return path
