"""One graph of an authored model: what it gives, and inputs of zeros."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.backends.onnxruntime import session
from slipway_serving.runtime.graph import Graph
from slipway_serving.runtime.program import Settings


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


def test_size_outside_the_exported_range_is_refused_before_a_run(tmp_path: Path, graph: Graph) -> None:
    config = {"name": "sums", "parameters": {"axes": {"string_value": "batch=1:2"}}}
    limited = Graph(Settings("sums", tmp_path, config), "sums.onnx")
    ones = np.ones((3, 3), np.float32)
    for given in ({"a": ones}, {"a": limited.to_device(ones)}):
        with pytest.raises(InvalidRequest) as refusal:
            limited.run({**given, "b": ones, "c": ones[:, :1]})
        assert str(refusal.value) == "sums: a must have 1 to 2 for batch, the exported range, got 3"
    with pytest.raises(InvalidRequest, match="sums: b must have 2 for batch as a has, got 1"):
        limited.run({"a": ones[:2], "b": ones[:1], "c": ones[:2, :1]})
    # Without ranges any size runs.
    assert graph.run({"a": ones, "b": ones, "c": ones[:, :1]})["sum"].shape() == [3, 3]


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def test_memory_of_a_large_run_is_given_back(tmp_path: Path) -> None:
    # square = x * x', [n, n], of which a run gives the mean alone.
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["mean"], keepdims=0),
    ]
    made = helper.make_graph(
        nodes,
        "square",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor_value_info("mean", TensorProto.FLOAT, [])],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(tmp_path / "model.onnx"))
    config = {"name": "square"}
    loaded = session.load(config, tmp_path, session.providers(config, "CPU", 0))
    options, graph = session.run_options(config), Graph(Settings("square", tmp_path, config), "model.onnx")
    small, large = np.ones((8, 1), np.float32), np.ones((8000, 1), np.float32)
    for run in (
        lambda x: loaded.run(["mean"], {"x": x}, options)[0],
        lambda x: graph.run({"x": x}, in_memory=["mean"])["mean"].numpy(),
    ):
        assert run(small) == 1
        before = resident_bytes()
        assert run(large) == 1
        # The square takes 256 MB.
        assert resident_bytes() - before < 64e6
