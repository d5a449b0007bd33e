"""Weights that several graphs of a folder hold are in one file on disk, and in memory once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from slipway_export.graph import shared_weights

WIDTH = 64
RANDOM = np.random.default_rng(0)
COMMON, OF_FIRST, OF_NEXT = (RANDOM.standard_normal((WIDTH, WIDTH)).astype(np.float32) for _ in range(3))
BIAS = np.ones(WIDTH, np.float32)
X = RANDOM.standard_normal((3, WIDTH)).astype(np.float32)


def graph(*weights: np.ndarray) -> onnx.ModelProto:
    """y = x @ weights[0] @ weights[1] ... + 1, x [rows, WIDTH]."""
    nodes = [
        helper.make_node("MatMul", [f"x{i}" if i else "x", f"w{i}"], [f"x{i + 1}"])
        for i in range(len(weights))
    ]
    nodes.append(helper.make_node("Add", [f"x{len(weights)}", "bias"], ["y"]))
    constants = {f"w{i}": weight for i, weight in enumerate(weights)} | {"bias": BIAS}
    made = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", WIDTH])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def write(folder: Path, name: str, *weights: np.ndarray) -> Path:
    path = folder / f"{name}.onnx"
    shared_weights.save(ir.from_proto(graph(*weights)), path)
    return path


def answer(model: str | bytes) -> np.ndarray:
    (result,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": X})
    return np.asarray(result)


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("*.data")}


def test_weights_lie_on_disk_once_when_two_graphs_have_them(tmp_path: Path) -> None:
    first = write(tmp_path, "first", COMMON, OF_FIRST)
    before = (tmp_path / "first.onnx.data").read_bytes()
    next_ = write(tmp_path, "next", OF_NEXT, COMMON)
    assert sizes(tmp_path) == {"first.onnx.data": 2 * COMMON.nbytes, "next.onnx.data": OF_NEXT.nbytes}
    assert (tmp_path / "first.onnx.data").read_bytes() == before
    np.testing.assert_array_equal(answer(str(first)), answer(graph(COMMON, OF_FIRST).SerializeToString()))
    np.testing.assert_array_equal(answer(str(next_)), answer(graph(OF_NEXT, COMMON).SerializeToString()))


def test_graph_has_no_data_of_its_own_when_another_has_all(tmp_path: Path) -> None:
    write(tmp_path, "first", COMMON, OF_FIRST)
    write(tmp_path, "next", OF_FIRST)
    assert list(sizes(tmp_path)) == ["first.onnx.data"]


def test_small_weights_stay_in_the_graph(tmp_path: Path) -> None:
    path = write(tmp_path, "first", COMMON)
    weights = onnx.load(path, load_external_data=False).graph.initializer
    assert {weight.name for weight in weights if weight.external_data} == {"w0"}


def test_third_graph_refers_to_those_of_both_others(tmp_path: Path) -> None:
    write(tmp_path, "first", COMMON)
    write(tmp_path, "next", OF_NEXT)
    write(tmp_path, "last", OF_NEXT, COMMON)
    assert sorted(sizes(tmp_path)) == ["first.onnx.data", "next.onnx.data"]


def test_graph_made_again_leaves_a_file_that_is_linked_elsewhere_as_it_is(tmp_path: Path) -> None:
    placed = tmp_path / "placed"
    write(tmp_path, "first", COMMON)
    placed.hardlink_to(tmp_path / "first.onnx.data")
    write(tmp_path, "first", OF_FIRST)
    assert placed.read_bytes() == COMMON.tobytes()
    assert (tmp_path / "first.onnx.data").read_bytes() == OF_FIRST.tobytes()


@pytest.mark.parametrize("stored", ["inline", "external"])
def test_written_graph_shares_weights_when_it_is_saved_again(tmp_path: Path, stored: str) -> None:
    write(tmp_path, "first", COMMON)
    path = tmp_path / "next.onnx"
    onnx.save(
        graph(COMMON, OF_NEXT), path, save_as_external_data=stored == "external", location="next.onnx.data"
    )
    shared_weights.save_again(path)
    assert sizes(tmp_path) == {"first.onnx.data": COMMON.nbytes, "next.onnx.data": OF_NEXT.nbytes}
    np.testing.assert_array_equal(answer(str(path)), answer(graph(COMMON, OF_NEXT).SerializeToString()))
