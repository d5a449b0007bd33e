"""Integer graphs: what is quantized, and that a weight becomes what ONNX Runtime's quantizers make of it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.quant_utils import quantize_data
from safetensors.torch import save_file

from slipway_export.checkpoint import stored_weights
from slipway_export.graph import external_weights
from slipway_export.graph.quantize import quantize
from slipway_export.spec import Precision
from slipway_serving.runtime.backends.onnxruntime import int8_products

RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.standard_normal((64, 48), np.float32)
BIAS = RANDOM.standard_normal(48, np.float32)
INPUT = RANDOM.standard_normal((5, 64), np.float32)
IDS = np.array([[0, 7, 32767], [7, 1, 2]])


def model_of(op_type: str = "MatMul", scopes: str = "['', 'layers.0.to_q']") -> ir.Model:
    """x times a weight, and for a Gemm plus a bias; the weight of a Gemm is turned around."""
    gemm = op_type == "Gemm"
    x = ir.val("x", ir.DataType.FLOAT, ["rows", 64])
    held = [ir.tensor(WEIGHT.T.copy() if gemm else WEIGHT, name="weight")]
    if gemm:
        held.append(ir.tensor(BIAS, name="bias"))
    values = [ir.Value(name=t.name, shape=t.shape, type=ir.TensorType(t.dtype), const_value=t) for t in held]
    node = ir.node(op_type, [x, *values], {"transB": 1} if gemm else {}, name="product")
    node.metadata_props["pkg.torch.onnx.name_scopes"] = scopes
    out = node.outputs[0]
    out.name, out.dtype, out.shape = "y", ir.DataType.FLOAT, ir.Shape(["rows", 48])
    graph = ir.Graph([x], [out], nodes=[node], initializers=values, opset_imports={"": 21})
    return ir.Model(graph, ir_version=10)


def run(model: ir.Model) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        ir.serde.serialize_model(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": INPUT})[0]


@pytest.mark.parametrize(("precision", "relative"), [(Precision.INT8, 0.02), (Precision.INT4, 0.15)])
@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
def test_product_is_near_the_float_one_when_quantized(
    op_type: str, precision: Precision, relative: float
) -> None:
    expected, model = run(model_of(op_type)), model_of(op_type)
    assert quantize(model, precision, ()) == 1
    assert "weight" not in model.graph.initializers
    error = run(model) - expected
    assert 0 < np.linalg.norm(error) / np.linalg.norm(expected) < relative


def test_int8_weight_equals_onnxruntimes_own() -> None:
    model = model_of()
    quantize(model, Precision.INT8, ())
    made = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
    for column in range(WEIGHT.shape[1]):
        zero, scale, values = quantize_data(
            WEIGHT[:, column],
            QuantType.QInt8.tensor_type,
            True,
            reduce_range=int8_products.largest_exact_weight() == int8_products.REDUCED,
        )
        assert zero == 0
        assert made["weight_scale"][column] == scale
        assert np.array_equal(made["weight_quantized"][:, column], values)


def test_column_of_zeros_stays_zero_when_quantized() -> None:
    model = model_of()
    weight = WEIGHT.copy()
    weight[:, 3] = 0
    model.graph.initializers["weight"].const_value = ir.tensor(weight, name="weight")
    quantize(model, Precision.INT8, ())
    assert np.array_equal(run(model)[:, 3], np.zeros(5))


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4])
def test_product_stays_as_it_is_when_its_module_is_kept_in_float(precision: Precision) -> None:
    model = model_of()
    assert quantize(model, precision, ("layers.*.to_q",)) == 0
    assert [node.op_type for node in model.graph] == ["MatMul"]


def test_input_is_quantized_once_when_several_products_take_it() -> None:
    model = model_of()
    graph = model.graph
    other = ir.node("MatMul", [graph.inputs[0], graph.initializers["weight"]], name="other")
    other.outputs[0].name, other.outputs[0].dtype = "z", ir.DataType.FLOAT
    graph.append(other)
    graph.outputs.append(other.outputs[0])
    assert quantize(model, Precision.INT8, ()) == 2
    kinds = [node.op_type for node in graph]
    assert (kinds.count("DynamicQuantizeLinear"), kinds.count("MatMulInteger")) == (1, 2)
    assert [value.name for value in graph.initializers.values()] == [
        "weight_quantized", "weight_scale", "weight_zero_point"
    ]  # fmt: skip


def test_weight_is_in_blocks_of_8_bits_when_its_input_has_outliers() -> None:
    expected, model = run(model_of()), model_of()
    assert quantize(model, Precision.INT8, (), ("layers.*.to_q",)) == 1
    assert [node.op_type for node in model.graph] == ["MatMulNBits"]
    assert model.graph.initializers["weight_Q8"].dtype is ir.DataType.UINT8
    error = run(model) - expected
    assert 0 < np.linalg.norm(error) / np.linalg.norm(expected) < 0.02


def lookup_of(table: ir.TensorProtocol) -> ir.Model:
    """Rows of a table by ids."""
    ids = ir.val("x", ir.DataType.INT64, ["batch", "tokens"])
    held = ir.Value(name="table", shape=table.shape, type=ir.TensorType(ir.DataType.FLOAT), const_value=table)
    node = ir.node("Gather", [held, ids], name="lookup")
    node.metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'embedding']"
    out = node.outputs[0]
    out.name, out.dtype, out.shape = "y", ir.DataType.FLOAT, ir.Shape(["batch", "tokens", table.shape[1]])
    graph = ir.Graph([ids], [out], nodes=[node], initializers=[held], opset_imports={"": 21})
    return ir.Model(graph, ir_version=10)


def look_up(model: ir.Model) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        ir.serde.serialize_model(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": IDS})[0]


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4])
def test_large_table_is_stored_in_half_and_its_rows_are_widened(precision: Precision) -> None:
    table = RANDOM.standard_normal((2**15, 64), np.float32)
    # What one outlier would cost the others of its row, if they had a scale together.
    table[2, 3] = 100.0
    model = lookup_of(ir.tensor(table, name="table"))
    quantize(model, precision, ())
    (held,) = (value.const_value for value in model.graph.initializers.values())
    assert (held.name, held.dtype, held.nbytes) == ("table_fp16", ir.DataType.FLOAT16, table.nbytes // 2)
    np.testing.assert_allclose(look_up(model), table[IDS], rtol=1e-3, atol=1e-6)


def test_table_stays_as_it_is_when_it_is_small_or_kept_in_float() -> None:
    small = lookup_of(ir.tensor(np.zeros((1024, 64), np.float32), name="table"))
    quantize(small, Precision.INT8, ())
    large = lookup_of(ir.tensor(np.zeros((2**15, 64), np.float32), name="table"))
    quantize(large, Precision.INT8, ("embedding",))
    for model in (small, large):
        assert [node.op_type for node in model.graph] == ["Gather"]


def test_table_on_disk_is_converted_while_it_is_written(tmp_path: Path) -> None:
    table = torch.randn(2**15, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_file({"table": table}, tmp_path / "weights.safetensors")
    stored = stored_weights.StoredTensor(
        tmp_path / "weights.safetensors", "table", (2**15, 32), torch.bfloat16
    )
    model = lookup_of(external_weights.Weight(stored, ir.DataType.FLOAT, name="table"))
    quantize(model, Precision.INT8, ())
    held, written = model.graph.initializers["table_fp16"].const_value, io.BytesIO()
    assert isinstance(held, external_weights.Weight)
    held.tofile(written)
    assert written.getvalue() == table.half().numpy().tobytes()
