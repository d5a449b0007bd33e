"""The first/next-graph runner on a graph of two nodes."""

import gc
import weakref
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.stepped import SteppedModel


def write_graphs(folder: Path, cache: str = "cache_00", cache_type: int = TensorProto.FLOAT) -> None:
    """Write a running sum: sample = value + cache, next cache = sample; the first step has no cache."""
    folder.mkdir(parents=True, exist_ok=True)
    value = helper.make_tensor_value_info("value", TensorProto.FLOAT, ["n"])
    held = helper.make_tensor_value_info(cache, cache_type, ["n"])
    outputs = [
        helper.make_tensor_value_info("sample", TensorProto.FLOAT, ["n"]),
        helper.make_tensor_value_info("next_cache_00", cache_type, ["n"]),
    ]
    keep = helper.make_node("Cast", ["sample"], ["next_cache_00"], to=cache_type)
    first = [helper.make_node("Identity", ["value"], ["sample"]), keep]
    following = [
        helper.make_node("Cast", [cache], ["before"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["value", "before"], ["sample"]),
        keep,
    ]
    for name, nodes, inputs in (("first", first, [value]), ("next", following, [value, held])):
        graph = helper.make_graph(nodes, name, inputs, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        onnx.save(model, str(folder / f"{name}.onnx"))


def settings(folder: Path, **parameters: str) -> Settings:
    values = {name: {"string_value": value} for name, value in parameters.items()}
    return Settings("sums", folder, {"name": "sums", "parameters": values})


@pytest.mark.parametrize("cache_type", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_step_carries_the_cache_when_it_is_given_the_last_state(tmp_path: Path, cache_type: int) -> None:
    write_graphs(tmp_path, cache_type=cache_type)
    model = SteppedModel(settings(tmp_path, intra_op_thread_count="1"))
    state = None
    for step in range(1, 6):
        outputs, state = model.step({"value": np.ones(3, np.float32)}, state)
        assert outputs.keys() == {"sample"}
        assert outputs["sample"].tolist() == [step] * 3
        assert list(state) == ["cache_00"]
        assert isinstance(state["cache_00"], ort.OrtValue)


def test_step_keeps_no_state_alive_but_the_last(tmp_path: Path) -> None:
    write_graphs(tmp_path)
    model = SteppedModel(settings(tmp_path))
    _, state = model.step({"value": np.ones(1000, np.float32)}, None)
    for _ in range(5):
        before = weakref.ref(state["cache_00"])
        _, state = model.step({"value": np.ones(1000, np.float32)}, state)
        gc.collect()
        assert before() is None


def test_sessions_do_not_disturb_each_other_when_they_interleave(tmp_path: Path) -> None:
    write_graphs(tmp_path)
    model = SteppedModel(settings(tmp_path))
    _, a = model.step({"value": np.ones(2, np.float32)}, None)
    _, b = model.step({"value": np.full(2, 10, np.float32)}, None)
    outputs_a, _ = model.step({"value": np.ones(2, np.float32)}, a)
    outputs_b, _ = model.step({"value": np.ones(2, np.float32)}, b)
    assert (outputs_a["sample"][0], outputs_b["sample"][0]) == (2, 11)


def test_graphs_are_refused_when_their_caches_do_not_fit(tmp_path: Path) -> None:
    write_graphs(tmp_path, cache="memory_00")
    with pytest.raises(Unrecoverable, match="outputs next_.* got a difference in cache_00, memory_00"):
        SteppedModel(settings(tmp_path))


def test_graphs_are_refused_when_a_file_is_missing_or_broken(tmp_path: Path) -> None:
    write_graphs(tmp_path)
    (tmp_path / "next.onnx").write_bytes(b"no graph")
    with pytest.raises(InvalidRequest, match=r"next\.onnx"):
        SteppedModel(settings(tmp_path))
    (tmp_path / "next.onnx").unlink()
    with pytest.raises(InvalidRequest, match=r"next\.onnx"):
        SteppedModel(settings(tmp_path))


def test_device_is_refused_when_onnxruntime_lacks_it(tmp_path: Path) -> None:
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    write_graphs(tmp_path)
    with pytest.raises(InvalidRequest, match="KIND_GPU"):
        SteppedModel(Settings("sums", tmp_path, {"name": "sums"}, kind="GPU"))
