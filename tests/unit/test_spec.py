"""The description of tensors: expressions, points, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_export.size import Size
from slipway_export.spec import Axis, Component, DType, Precision, TensorSpec, Tolerance
from slipway_serving.errors import InvalidRequest

BOUND = {Precision.FP32: Tolerance(1e-3, 1e-4, 0.999)}


def component(*axes: Axis, shape: tuple[int | str, ...] = ("batch", "2 * rows")) -> Component:
    tensor = TensorSpec("hidden_states", DType.FLOAT32, shape)
    return Component("net", (tensor,), (tensor,), axes, lambda _: None, BOUND)  # type: ignore[arg-type, return-value]


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
    ],
)
def test_size_refuses_other_text(text: str) -> None:
    with pytest.raises(InvalidRequest, match="dimension must be"):
        Size.parse(text)


@pytest.mark.parametrize("sizes", [(0, 1, 2), (2, 1, 3), (1, 4, 3)])
def test_axis_refuses_range_out_of_order(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidRequest, match="min <= opt <= max"):
        Axis("rows", *sizes)


def test_component_refuses_shape_of_unknown_axis() -> None:
    with pytest.raises(InvalidRequest, match=r"hidden_states must use axes.*rows"):
        component(Axis("batch", 1, 2, 2))


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
