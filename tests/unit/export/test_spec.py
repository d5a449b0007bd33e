"""The description of tensors: expressions, points, and what is refused."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_export.graph.dialect import refusal
from slipway_export.options import ExportOptions
from slipway_export.run import _other_precisions
from slipway_export.spec import Axis, Component, DType, Engine, Precision, TensorSpec, Tolerance
from slipway_serving.protocol.axis_expressions import Size
from slipway_serving.protocol.errors import InvalidRequest

BOUND = {Precision.FP32: Tolerance(1e-3, 1e-4, 0.999)}


def component(*axes: Axis, shape: tuple[int | str, ...] = ("batch", "2 * rows")) -> Component:
    tensor = TensorSpec("hidden_states", DType.FLOAT32, shape)
    return Component("net", (tensor,), (tensor,), axes, lambda *_: None, BOUND)  # type: ignore[arg-type, return-value]


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 50), st.booleans())
def test_axis_unseen_is_none_of_the_other_points_when_there_is_room(
    low: int, up: int, more: int, prefer_low: bool
) -> None:
    axis = Axis("rows", low, low + up, low + up + more)
    unseen = axis.unseen(prefer_low)
    assert axis.min <= unseen <= axis.max
    room = set(range(axis.min, axis.max + 1)) - {axis.min, axis.opt, axis.max}
    assert unseen in room if room else unseen == axis.opt


def test_size_parses_factor_axis_and_offset() -> None:
    assert Size.parse("rows").affine == ("rows", 1, 0)
    assert Size.parse("16 * token_height").affine == ("token_height", 16, 0)
    assert Size.parse("frames + 9").affine == ("frames", 1, 9)
    assert Size.parse("9 * steps + 16").affine == ("steps", 9, 16)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2*rows",
        "rows * 2",
        "Rows",
        "-1 * rows",
        "rows - rows",
        "0 * rows",
        "3 + rows",
        "rows + 1 + 2",
        "rows +",
        "ceil(rows / 0)",
        "ceil(rows * 2)",
        "ceil(9 / 2)",
    ],
)
def test_size_refuses_other_text(text: str) -> None:
    with pytest.raises(InvalidRequest, match="dimension must be"):
        Size.parse(text)


def test_size_parses_sums_of_products_of_axes() -> None:
    point = {"frames": 5, "height": 3, "width": 4, "window": 2, "text_tokens": 7}
    wanted = {
        "4 * frames - 3": (17, "4*frames - 3"),
        "height * width": (12, "height*width"),
        "2 * window * height * width": (48, "2*height*width*window"),
        "height * width + text_tokens": (19, "height*width + text_tokens"),
        "text_tokens + width * height + 9": (28, "height*width + text_tokens + 9"),
        "2 * frames + frames - height * width - 1": (2, "-height*width + 3*frames - 1"),
    }
    for text, (value, name) in wanted.items():
        assert (Size.parse(text).at(point), str(Size.parse(text))) == (value, name)
    assert Size.parse("height * width").axes == {"height", "width"}
    assert Size.parse("height * width").affine is None
    assert Size.parse("width * height + 1 * frames") == Size.parse("frames + height * width")


def test_size_rounds_groups_of_an_axis_up() -> None:
    size = Size.parse("4 * ceil(height / 4) * width + ceil(height / 2) + 1")
    assert [size.at({"height": height, "width": 3}) for height in (1, 4, 5)] == [14, 15, 28]
    assert str(size) == "4*ceil(height / 4)*width + ceil(height / 2) + 1"
    assert size.axes == {"height", "width"}
    assert str(size.substitute({"height": 5})) == "8*width + 4"
    assert size.bounds({"height": 1, "width": 1}, {"height": 8, "width": 2}) == (6, 21)
    assert Size.parse("ceil(height / 4)").affine is None


terms = st.lists(
    st.tuples(st.integers(1, 5), st.lists(st.sampled_from("abc"), min_size=1, max_size=3)),
    min_size=1,
    max_size=4,
)
points = st.fixed_dictionaries({axis: st.integers(1, 9) for axis in "abc"})


@given(terms, st.integers(-9, 9), points, points)
def test_size_is_the_value_of_its_text_at_any_point(
    products: list[tuple[int, list[str]]], offset: int, point: dict[str, int], other: dict[str, int]
) -> None:
    text = " + ".join(" * ".join([str(factor), *axes]) for factor, axes in products)
    size = Size.parse(f"{text} {'-' if offset < 0 else '+'} {abs(offset)}")
    value = sum(factor * math.prod(point[axis] for axis in axes) for factor, axes in products) + offset
    assert size.at(point) == value == eval(str(size), dict(point))
    left = size.substitute({"a": point["a"]})
    assert (left if isinstance(left, int) else left.at({"b": point["b"], "c": point["c"]})) == value
    low = {axis: min(point[axis], other[axis]) for axis in "abc"}
    high = {axis: max(point[axis], other[axis]) for axis in "abc"}
    least, most = size.bounds(low, high)
    assert least <= value <= most


@pytest.mark.parametrize("sizes", [(0, 1, 2), (2, 1, 3), (1, 4, 3)])
def test_axis_refuses_range_out_of_order(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidRequest, match="min <= opt <= max"):
        Axis("rows", *sizes)


def test_component_refuses_shape_of_unknown_axis() -> None:
    with pytest.raises(InvalidRequest, match=r"hidden_states must use axes.*rows"):
        component(Axis("batch", 1, 2, 2))


def test_component_refuses_size_below_one_by_point() -> None:
    with pytest.raises(InvalidRequest, match=r"hidden_states must have sizes of at least 1.*\[1, 0\] at min"):
        component(Axis("batch", 1, 2, 2), Axis("rows", 1, 4, 9), shape=("batch", "rows - 1"))
    assert component(Axis("batch", 1, 2, 2), Axis("rows", 2, 4, 9), shape=("batch", "rows - 1"))


@pytest.mark.parametrize(
    ("dtype", "values"),
    [(DType.UINT8, (0, 257)), (DType.UINT8, (-1, 3)), (DType.BOOL, (0, 3)), (DType.INT64, (5, 5))],
)
def test_tensor_refuses_values_that_its_dtype_lacks(dtype: DType, values: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest, match=f"tensor ids must have values of {dtype.value} in a range"):
        TensorSpec("ids", dtype, ("rows",), values=values)


def test_dtypes_have_tritons_names() -> None:
    assert {dtype.value: dtype.triton for dtype in DType} == {
        "float32": "TYPE_FP32",
        "float16": "TYPE_FP16",
        "int64": "TYPE_INT64",
        "int32": "TYPE_INT32",
        "uint8": "TYPE_UINT8",
        "bool": "TYPE_BOOL",
    }


def test_points_give_every_axis_a_size_and_shapes_follow_the_expression() -> None:
    net = component(Axis("batch", 1, 2, 2), Axis("rows", 1, 4, 9))
    points = net.points()
    assert points["min"] == {"batch": 1, "rows": 1}
    assert points["max"] == {"batch": 2, "rows": 9}
    assert points["unseen"]["rows"] not in (1, 4, 9)
    assert net.inputs[0].at(points["opt"]) == (2, 8)
    assert component(*net.axes, shape=("batch", "2 * rows + 3")).inputs[0].at(points["max"]) == (2, 21)


def test_batch_axis_is_none_when_a_tensor_does_not_begin_with_it() -> None:
    batch, rows = Axis("batch", 1, 2, 2), Axis("rows", 1, 4, 9)
    assert component(batch, rows).batch_axis == batch
    assert component(batch, rows, shape=(1, "rows")).batch_axis is None


def test_precision_without_bounds_stays_fp32() -> None:
    net = component(Axis("batch", 1, 2, 2), Axis("rows", 1, 4, 9))
    assert net.precision(Precision.FP16) is Precision.FP32


def test_portable_component_lacks_integer_precisions_where_no_product_would_be_of_them() -> None:
    floats, integers = (Precision.FP32, Precision.FP16), (Precision.INT8, Precision.INT4)
    bounds = dict.fromkeys((*floats, *integers), Tolerance(1e-3, 1e-4, 0.999))
    net = replace(component(Axis("batch", 1, 2, 3), Axis("rows", 1, 2, 3)), tolerance=bounds)
    assert net.for_portable() is net
    assert [*replace(net, outliers=("*.wo",)).for_portable().tolerance] == [*bounds]
    assert tuple(replace(net, outliers=("*",)).for_portable().tolerance) == floats
    other = replace(net, name="other")
    assert replace(net, portable=other).for_portable() is other


def test_component_has_the_precisions_of_its_engine() -> None:
    bounds = dict.fromkeys(Precision, Tolerance(1e-3, 1e-4, 0.999))
    axes = Axis("batch", 1, 2, 3), Axis("rows", 1, 2, 3)
    net = replace(component(*axes), tolerance=bounds, tensorrt_excludes={Precision.FP16: "it overflows"})
    for engine in (Engine.ONNXRUNTIME, Engine.PORTABLE, Engine.TORCH):
        assert set(net.for_engine(engine).tolerance) == set(Precision) - {Precision.FP8}
        assert net.for_engine(engine).loaded_in(Precision.INT8) is Precision.FP32
    made = net.for_engine(Engine.TENSORRT)
    assert set(made.tolerance) == set(Precision) - {Precision.FP16}
    # Quantized graphs keep everything but the products in a half precision that TensorRT may compute in.
    assert [made.loaded_in(p) for p in (Precision.FP8, Precision.INT4, Precision.FP32)] == [
        Precision.BF16, Precision.BF16, Precision.FP32
    ]  # fmt: skip
    assert made.lowest_opset[Precision.INT8] == 22  # as bfloat16 needs
    able = replace(net, tensorrt_excludes={}).for_engine(Engine.TENSORRT)
    assert (able.loaded_in(Precision.FP8), able.lowest_opset[Precision.FP8]) == (Precision.FP16, 21)


def test_precision_that_tensorrt_must_not_compute_in_is_refused_with_the_reason() -> None:
    bounds = dict.fromkeys(Precision, Tolerance(1e-3, 1e-4, 0.999))
    net = replace(
        component(Axis("batch", 1, 2, 3), Axis("rows", 1, 2, 3)),
        tolerance=bounds,
        tensorrt_excludes={Precision.FP16: "it overflows"},
    )
    assert refusal(net, Precision.FP16, Engine.TENSORRT) == (
        "precision of net must be one of fp32, bf16, int8, fp8, int4 with engine tensorrt (it overflows),"
        " got fp16"
    )
    assert refusal(net, Precision.FP16, Engine.ONNXRUNTIME) is None
    assert refusal(net, Precision.BF16, Engine.TENSORRT) is None
    assert refusal(net, Precision.FP8, Engine.TORCH) == (
        "precision of net must be one of fp64, fp32, fp16, bf16 with engine torch, got fp8; try --weights"
        " net=fp8"
    )


def test_export_says_which_graphs_are_made_in_another_precision_than_asked() -> None:
    net = component(Axis("batch", 1, 2, 3), Axis("rows", 1, 2, 3))
    able = replace(net, name="able", tolerance=BOUND | {Precision.INT8: BOUND[Precision.FP32]})
    parts = [replace(net, graph="head"), able, replace(net, name="other")]

    def said(precision: Precision, **more: Precision) -> list[str]:
        return [
            *_other_precisions(parts, ExportOptions("x", Path("r"), precision=precision, precisions=more))
        ]

    assert said(Precision.FP32) == []
    assert said(Precision.INT8) == ["fp32 instead of int8, which is not offered for: net/head, other"]
    assert said(Precision.INT8, net=Precision.FP16, other=Precision.FP32) == [
        "fp32 instead of fp16, which is not offered for: net/head"
    ]
