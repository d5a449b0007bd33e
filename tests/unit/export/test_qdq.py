"""Quantized graphs for TensorRT: the pattern of QuantizeLinear and DequantizeLinear, and its numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

from slipway_export.graph.calibration import SEEDS, largest_inputs
from slipway_export.graph.onnx import example_inputs, export_graph
from slipway_export.graph.qdq import quantize
from slipway_export.spec import Axis, Component, DType, Engine, Precision, TensorSpec, Tolerance
from slipway_export.verification.comparison import check_parity, compute_reference, verify
from slipway_serving.protocol.errors import InvalidRequest

RANDOM = np.random.default_rng(0)
# 72 inputs are two blocks of 32 and a part of one.
WEIGHT = RANDOM.standard_normal((72, 48), np.float32)
BIAS = RANDOM.standard_normal(48, np.float32)
INPUT = RANDOM.standard_normal((5, 72), np.float32)
PATH = "layers.0.to_q"
RANGES = {PATH: float(np.abs(INPUT).max())}
QUANTIZED = (Precision.INT8, Precision.FP8, Precision.INT4)
STORED = {
    Precision.INT8: ir.DataType.INT8,
    Precision.FP8: ir.DataType.FLOAT8E4M3FN,
    Precision.INT4: ir.DataType.INT4,
}
ERRORS = {Precision.INT8: 0.02, Precision.FP8: 0.06, Precision.INT4: 0.12}


def model_of(op_type: str = "MatMul", dtype: ir.DataType = ir.DataType.FLOAT16) -> ir.Model:
    """x times a weight in an element type; the weight of a Gemm is turned around, and it adds a bias."""
    gemm = op_type == "Gemm"
    x = ir.val("x", dtype, ["tokens", 72])
    ids = ir.val("ids", ir.DataType.INT64, ["batch"])
    arrays = {"weight": WEIGHT.T.copy() if gemm else WEIGHT} | ({"bias": BIAS} if gemm else {})
    tensors = [ir.tensor(array.astype(dtype.numpy()), name=name) for name, array in arrays.items()]
    values = [
        ir.Value(name=t.name, shape=t.shape, type=ir.TensorType(t.dtype), const_value=t) for t in tensors
    ]
    node = ir.node(op_type, [x, *values], {"transB": 1} if gemm else {}, name="product")
    node.metadata_props["pkg.torch.onnx.name_scopes"] = f"['', '{PATH}', 'linear']"
    out = node.outputs[0]
    out.name, out.dtype, out.shape = "y", dtype, ir.Shape(["tokens", 48])
    graph = ir.Graph([ids, x], [out], nodes=[node], initializers=values, opset_imports={"": 21})
    return ir.Model(graph, ir_version=10)


def run(model: ir.Model) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        ir.serde.serialize_model(model).SerializeToString(),
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["QDQSelectorActionTransformer"],  # Fused products do not accept float8.
    )
    dtype = model.graph.inputs[-1].dtype
    assert dtype is not None
    return session.run(None, {"ids": np.zeros(2, np.int64), "x": INPUT.astype(dtype.numpy())})[0]


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT16, ir.DataType.FLOAT])
@pytest.mark.parametrize("precision", QUANTIZED)
@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
def test_product_is_near_the_float_one_when_quantized(
    op_type: str, precision: Precision, dtype: ir.DataType
) -> None:
    expected, model = run(model_of(op_type, dtype)).astype(np.float32), model_of(op_type, dtype)
    assert quantize(model, precision, (), (), RANGES) == 1
    assert "weight" not in model.graph.initializers
    error = run(model).astype(np.float32) - expected
    assert 0 < np.linalg.norm(error) / np.linalg.norm(expected) < ERRORS[precision]


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16])
@pytest.mark.parametrize("precision", QUANTIZED)
def test_scales_are_positive_and_zero_points_are_zero(precision: Precision, dtype: ir.DataType) -> None:
    model = model_of(dtype=dtype)
    quantize(model, precision, (), (), RANGES)
    constants = {name: value.const_value for name, value in model.graph.initializers.items()}
    assert constants["weight_quantized"].dtype is STORED[precision]
    assert list(constants["weight_quantized"].shape) == [72, 48]
    for name, tensor in constants.items():
        if name.endswith("_scale"):
            assert tensor.dtype is dtype
            assert (tensor.numpy().astype(np.float32) > 0).all()
        if name.endswith("_zero_point"):
            assert tensor.dtype is STORED[precision]
            assert not tensor.numpy().astype(np.float32).any()
    (weight,) = (node for node in model.graph if node.inputs[0].name == "weight_quantized")
    assert weight.op_type == "DequantizeLinear"
    if precision is Precision.INT4:
        assert operators(model) == ["DequantizeLinear", "MatMul"]
        assert (weight.attributes["axis"].as_int(), weight.attributes["block_size"].as_int()) == (0, 32)
        assert list(constants["weight_scale"].shape) == [3, 48]
    else:
        assert operators(model) == ["QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "MatMul"]
        assert weight.attributes["axis"].as_int() == 1
        assert "block_size" not in weight.attributes
        assert list(constants["weight_scale"].shape) == [48]
        assert list(constants["x_scale"].shape) == []


@pytest.mark.parametrize("precision", QUANTIZED)
def test_product_stays_as_it_is_when_its_module_is_kept_in_float(precision: Precision) -> None:
    model = model_of()
    assert quantize(model, precision, ("layers.*.to_q",), (), RANGES) == 0
    assert operators(model) == ["MatMul"]


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FP8])
def test_only_the_weight_is_quantized_when_the_input_has_outliers(precision: Precision) -> None:
    model = model_of()
    assert quantize(model, precision, (), ("layers.*.to_q",), {}) == 1
    assert operators(model) == ["DequantizeLinear", "MatMul"]
    assert model.graph.initializers["weight_quantized"].dtype is STORED[precision]


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FP8])
def test_only_the_weight_is_quantized_when_the_input_has_one_row_per_batch_entry(
    precision: Precision,
) -> None:
    model = model_of()
    model.graph.inputs[1].shape = ir.Shape(["batch", 72])
    assert quantize(model, precision, (), (), RANGES) == 1
    assert operators(model) == ["DequantizeLinear", "MatMul"]


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FP8])
def test_product_stays_as_it_is_when_its_input_was_not_calibrated(precision: Precision) -> None:
    model = model_of()
    assert quantize(model, precision, (), (), {"layers.0.to_k": 1.0}) == 0
    assert operators(model) == ["MatMul"]


def test_input_is_quantized_once_with_the_widest_range_when_several_products_take_it() -> None:
    model = model_of()
    graph = model.graph
    other = ir.node("MatMul", [graph.inputs[1], graph.initializers["weight"]], name="other")
    other.metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'layers.0.to_k', 'linear']"
    other.outputs[0].name, other.outputs[0].dtype = "z", ir.DataType.FLOAT16
    graph.append(other)
    graph.outputs.append(other.outputs[0])
    assert quantize(model, Precision.INT8, (), (), {PATH: 127.0, "layers.0.to_k": 254.0}) == 2
    assert Counter(operators(model))["QuantizeLinear"] == 1
    assert model.graph.initializers["x_scale"].const_value.numpy() == 2
    run(model)


def test_column_of_zeros_stays_zero_when_quantized() -> None:
    for precision in QUANTIZED:
        model = model_of()
        weight = WEIGHT.astype(np.float16)
        weight[:, 3] = 0
        model.graph.initializers["weight"].const_value = ir.tensor(weight, name="weight")
        quantize(model, precision, (), (), RANGES)
        assert np.array_equal(run(model)[:, 3], np.zeros(5))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64)).eval().requires_grad_(False)


def component_of(module: nn.Module, **more: object) -> Component:
    x, y = (TensorSpec(name, DType.FLOAT32, ("batch", "tokens", 64)) for name in "xy")
    bounds = dict.fromkeys(Precision, Tolerance(1.0, 0.15, 0.98))
    del bounds[Precision.FP16], bounds[Precision.BF16]  # This network is loaded in float32 alone.
    axes = (Axis("batch", 1, 2, 2), Axis("tokens", 2, 8, 32))
    component = Component("net", (x,), (y,), axes, lambda *_: module, bounds, **more)
    return component.for_engine(Engine.TENSORRT)


def test_calibration_keeps_the_largest_input_of_each_layer_over_points_and_seeds() -> None:
    module = network()
    component = component_of(module)
    points = component.points()
    found = largest_inputs(component, module, points)
    inputs = [
        example_inputs(component, point, seed)["x"]
        for name, point in points.items()
        for seed in SEEDS
        if name != "unseen"
    ]
    assert found["0"] == max(float(np.abs(array).max()) for array in inputs)
    assert set(found) == {"0", "2"}
    unseen = {"unseen": points["unseen"]}
    assert 0 < largest_inputs(component, module, unseen)["0"] <= 6
    assert not any(part._forward_pre_hooks for part in module.modules())


def test_calibration_is_refused_by_name_when_an_input_is_not_finite() -> None:
    module = network()
    module[0].bias.data[3] = float("inf")
    with pytest.raises(InvalidRequest, match=r"net: inputs of linear layers must be finite .* in 2$"):
        largest_inputs(component_of(module), module, component_of(module).points())


@pytest.mark.parametrize("precision", QUANTIZED)
def test_exported_graph_keeps_its_bounds_and_its_float_products(tmp_path: Path, precision: Precision) -> None:
    module = network()
    component, path = component_of(module, keep_float=("2",)), tmp_path / "g.onnx"
    export_graph(
        component,
        module,
        path,
        opset=22,
        precision=precision,
        engine=Engine.TENSORRT,
        largest_inputs=largest_inputs(component, module, component.points()),
    )
    rows = verify(component, path, compute_reference(component, module), precision)
    check_parity(rows)
    assert min(row.relative_l2 for row in rows) > 1e-4
    kinds = Counter(node.op_type for node in ir.load(path).graph)
    assert kinds["QuantizeLinear"] == (precision is not Precision.INT4)
    assert kinds["DequantizeLinear"] == 1 + kinds["QuantizeLinear"]


def test_export_is_refused_when_no_product_was_calibrated(tmp_path: Path) -> None:
    module = network()
    with pytest.raises(InvalidRequest, match="precision fp8 must have matrix products to quantize, got none"):
        export_graph(
            component_of(module),
            module,
            tmp_path / "g.onnx",
            opset=22,
            precision=Precision.FP8,
            engine=Engine.TENSORRT,
        )
