"""INT8 weights are such that ONNX Runtime's products are exact on the processor that serves them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.backends.onnxruntime import int8_products
from slipway_serving.runtime.backends.onnxruntime.session import load


def product(weight: int) -> onnx.ModelProto:
    """Return a graph that multiplies 64 unsigned numbers by signed weights, all of one value."""
    constants = {
        "weight": np.full((64, 16), weight, np.int8),
        "input_zero": np.array(0, np.uint8),
        "weight_zero": np.array(0, np.int8),
    }
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "weight", "input_zero", "weight_zero"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [4, 16])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_products_are_exact_for_weights_up_to_the_largest_and_for_no_larger_ones() -> None:
    def is_exact(weight: int) -> bool:
        model = product(weight).SerializeToString()
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {"x": np.full((4, 64), 255, np.uint8)})
        return bool((found == 64 * 255 * weight).all())

    largest = int8_products.largest_exact_weight()
    assert is_exact(largest) and is_exact(-largest)
    assert is_exact(int8_products.FULL) == (largest == int8_products.FULL)


def config(folder: Path, largest: int) -> dict[str, object]:
    model = product(1)
    helper.set_model_props(model, {int8_products.PROPERTY: str(largest)})
    onnx.save(model, folder / "model.onnx")
    return {"name": "product"}


def test_graph_is_refused_when_this_processor_clips_its_products(tmp_path: Path) -> None:
    cpu = [("CPUExecutionProvider", dict[str, str]())]
    largest = int8_products.largest_exact_weight()
    assert load(config(tmp_path, largest), tmp_path, cpu).get_inputs()
    with pytest.raises(InvalidRequest, match=rf"product: INT8 weights must be at most {largest} on a proc"):
        load(config(tmp_path, largest + 1), tmp_path, cpu)
