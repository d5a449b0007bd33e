"""One graph of an authored model: what it gives, and inputs of zeros."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from slipway_serving.graph import Graph
from slipway_serving.program import Settings


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """sum = a + b, difference = a - b; c, of another shape, goes nowhere but to `same`."""
    shapes = {"a": ["batch", 3], "b": ["batch", 3], "c": ["batch", 1]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("sum", shapes["a"]), ("difference", shapes["a"]), ("same", shapes["c"]))
    ]
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Sub", ["a", "b"], ["difference"]),
        helper.make_node("Identity", ["c"], ["same"]),
    ]
    made = helper.make_graph(nodes, "sums", inputs, outputs)
    onnx.save(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10),
        str(tmp_path / "sums.onnx"),
    )
    return Graph(Settings("sums", tmp_path, {"name": "sums"}), "sums.onnx")


def test_zeros_are_one_value_when_inputs_have_one_shape(graph: Graph) -> None:
    zeros = graph.zeros(["a", "b", "c"])
    assert {name: value.shape() for name, value in zeros.items()} == {"a": [1, 3], "b": [1, 3], "c": [1, 1]}
    assert zeros["a"] is zeros["b"] and zeros["a"] is not zeros["c"]
    outputs = graph.run({**zeros, "a": np.ones((1, 3), np.float32)})
    assert outputs["sum"].numpy().tolist() == [[1, 1, 1]]
    assert not zeros["b"].numpy().any()


def test_run_gives_no_more_than_is_wanted(graph: Graph) -> None:
    ones = np.ones((2, 3), np.float32)
    tensors = {"a": ones, "b": ones, "c": ones[:, :1]}
    outputs = graph.run(tensors, in_memory=["difference"], wanted=["same", "difference"])
    assert {name: value.numpy().sum() for name, value in outputs.items()} == {"difference": 0, "same": 2}
    assert list(graph.run(tensors)) == ["sum", "difference", "same"]
