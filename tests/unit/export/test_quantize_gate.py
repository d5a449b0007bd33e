"""A quantized graph is not let through when outliers take the others' precision, and is when they cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slipway_export.graph.onnx import export_graph
from slipway_export.graph.opset import DEFAULT_OPSET
from slipway_export.spec import Axis, Component, DType, Engine, Precision, TensorSpec, Tolerance
from slipway_export.verification.comparison import ParityFailed, check_parity, compute_reference, verify

BOUND = Tolerance(max_abs=1e4, relative_l2=8e-2, cosine=0.997, row_cosine=0.99)
BOUNDS = dict.fromkeys(Precision, BOUND)
WIDTH = 64


def with_a_wide_token(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Make tokens of which the first is a thousand times as wide as the others, as attention sinks are."""
    tokens = np.random.default_rng(0).standard_normal(shape)
    tokens[0] *= 1000
    return tokens


def network(outliers: bool) -> nn.Module:
    """A product; with outliers one of its inputs is small and has large weights, as behind a norm."""
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    if outliers:
        with torch.no_grad():
            layer.weight[:, 5] *= 40
    return nn.Sequential(layer).eval()


def gate(folder: Path, precision: Precision, tensor: TensorSpec, module: nn.Module, **options: Any) -> None:
    """Export the network in a precision and hold it against its bounds."""
    output = TensorSpec("output", DType.FLOAT32, tensor.shape)
    axes = (Axis("tokens", 2, 16, 32),)
    net = Component("net", (tensor,), (output,), axes, lambda *_: module, BOUNDS, **options)
    path = folder / "g.onnx"
    export_graph(net, module, path, opset=DEFAULT_OPSET, precision=precision)
    check_parity(verify(net, path, compute_reference(net, module), precision))


def test_dynamic_int8_is_refused_for_its_rows_when_a_token_is_wide(tmp_path: Path) -> None:
    tensor = TensorSpec("x", DType.FLOAT32, ("tokens", WIDTH), example=with_a_wide_token)
    with pytest.raises(ParityFailed, match="cosine of the worst row must be >= 0.99") as failure:
        gate(tmp_path, Precision.INT8, tensor, network(outliers=False))
    # The wide token is nearly all of the whole tensor, which says nothing.
    assert "relative L2" not in str(failure.value)
    gate(tmp_path, Precision.INT8, tensor, network(outliers=False), outliers=("*",))


def test_int4_is_refused_and_int8_passes_when_weights_have_outliers(tmp_path: Path) -> None:
    tensor = TensorSpec("x", DType.FLOAT32, ("tokens", WIDTH))
    gate(tmp_path, Precision.INT8, tensor, network(outliers=True), outliers=("*",))
    with pytest.raises(ParityFailed, match="cosine of the worst row"):
        gate(tmp_path, Precision.INT4, tensor, network(outliers=True))


def test_portable_graph_keeps_products_with_outliers_in_float(tmp_path: Path) -> None:
    import onnx

    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).eval()
    tensor = TensorSpec("x", DType.FLOAT32, ("tokens", WIDTH))
    axes = (Axis("tokens", 2, 16, 32),)
    output = TensorSpec("output", DType.FLOAT32, tensor.shape)
    net = Component("net", (tensor,), (output,), axes, lambda *_: module, BOUNDS, outliers=("1",))
    export_graph(net, module, tmp_path / "g.onnx", opset=17, precision=Precision.INT8, engine=Engine.PORTABLE)
    graph = onnx.load(tmp_path / "g.onnx").graph
    assert {node.domain for node in graph.node} == {""}
    assert [node.op_type for node in graph.node].count("MatMulInteger") == 1
