"""Which points are verified within a budget of seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import pytest
from torch import nn

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.engines.device import Device
from slipway_export.families import families
from slipway_export.progress import format_duration
from slipway_export.sizing.budget import LeftOut, Verification, choose_for_machine, choose_points
from slipway_export.sizing.resource_check import InsufficientResources
from slipway_export.spec import Axis, Component, DType, Precision, Stepped, TensorSpec, Tolerance
from slipway_serving.protocol.axis_expressions import Point

CLOSE = {Precision.FP32: Tolerance(1.0, 1.0, 0.0)}


def net(name: str, *axes: Axis) -> Component:
    shape = tuple(axis.name for axis in axes)
    tensors = (TensorSpec("x", DType.FLOAT32, shape),), (TensorSpec("y", DType.FLOAT32, shape),)
    return Component(name, *tensors, axes, lambda *_: pytest.fail("no network is needed"), CLOSE)


SMALL = net("small", Axis("width", 1, 2, 3))
LARGE = net("large", Axis("width", 10, 100, 1000), Axis("height", 10, 100, 1000))
STEPS = Stepped(net("steps", Axis("width", 10, 100, 1000)), {}, {"y": 0}, 4, lambda inputs: inputs)


def area(component: Component, points: Sequence[Point]) -> list[float]:
    """A second for each of the thousand places of a tensor."""
    return [component.inputs[0].at(point)[0] * point.get("height", 1) / 1000 for point in points]


def chosen(budget: float, *components: Component, runs: Sequence[Stepped] = ()) -> Verification:
    return choose_points(components, runs, budget, area)


def test_all_points_are_verified_when_the_budget_holds_them() -> None:
    verification = chosen(2000, SMALL, LARGE)
    assert verification.points == {"small": SMALL.points(), "large": LARGE.points()}
    assert verification.left_out == ()


def test_points_are_fewer_but_vary_in_all_axes_when_the_budget_is_small() -> None:
    verification = chosen(8, LARGE)
    points = verification.points["large"]
    low, reduced, unseen = points["min"], points["reduced"], points["unseen"]
    assert low == LARGE.points()["min"]
    for axis in LARGE.axes:
        assert low[axis.name] < unseen[axis.name] < reduced[axis.name] < axis.opt
    assert verification.seconds <= 8
    assert [(left.point, left.seconds) for left in verification.left_out] == [("opt", 10), ("max", 1000)]


def test_opt_is_verified_when_the_budget_holds_it_beside_a_larger_point() -> None:
    points = chosen(40, LARGE).points["large"]
    assert points["opt"] == LARGE.points()["opt"]
    assert [left.point for left in chosen(40, LARGE).left_out] == ["max"]


def test_least_points_are_verified_when_the_budget_holds_nothing() -> None:
    verification = chosen(1e-9, LARGE)
    assert verification.points["large"] == {
        "min": {"width": 10, "height": 10}, "reduced": {"width": 11, "height": 11}
    }  # fmt: skip
    assert verification.seconds > 1e-9


def test_what_a_small_graph_does_not_need_goes_to_a_large_one_when_both_are_verified() -> None:
    alone = chosen(30, LARGE).points["large"]["reduced"]
    beside = chosen(30.1, LARGE, SMALL).points["large"]["reduced"]
    assert beside == alone
    halves = chosen(30, LARGE, net("other", *LARGE.axes)).points
    assert halves["large"] == halves["other"]
    assert halves["large"]["reduced"]["width"] < alone["width"]


def test_steps_run_at_a_smaller_point_when_the_budget_does_not_hold_opt() -> None:
    whole, part = chosen(9, STEPS.next, runs=[STEPS]), chosen(0.3, STEPS.next, runs=[STEPS])
    assert whole.steps == {"steps": {"width": 100}}
    assert 10 < part.steps["steps"]["width"] < 100
    assert LeftOut("steps", "steps", {"width": 100}, 0.4) in part.left_out


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_tiny_checkpoint_is_verified_at_all_points_when_the_budget_is_the_default(family) -> None:  # type: ignore[no-untyped-def]
    said: list[str] = []
    with open_checkpoint(family, "tiny") as checkpoint:
        plan = family.plan(checkpoint, axes_of(family, checkpoint, {}))
        found = choose_for_machine(plan.components, plan.stepped, 300.0, Device.CPU, {}, said.append)
    assert found.left_out == ()
    assert found.points == {component.label: component.points() for component in plan.components}
    # Without a calibration, whose verdict would depend on what else the machine does.
    assert said == ["verification: at all points, within the budget of 300 s"]


def products(width: int) -> Component:
    """A network whose activations are its input and its output, 8 bytes for each place of both."""
    tensors = (TensorSpec(name, DType.FLOAT32, ("rows", width)) for name in "xy")
    build = lambda *_: nn.Linear(width, width)  # noqa: E731 - a description has functions
    return Component("products", *((each,) for each in tensors), (Axis("rows", 1, 64, 4096),), build, CLOSE)


def test_points_are_those_that_memory_holds_when_there_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_export.sizing.budget.available_memory", lambda: 5_000_000)
    said: list[str] = []
    found = choose_for_machine([products(256)], (), 300.0, Device.CPU, {"products": 1_000_000}, said.append)
    points = found.points["products"]
    # 2 KB a row, and ONNX Runtime may hold them twice.
    assert 64 <= max(point["rows"] for point in points.values()) <= 4_000_000 / (2 * 2048)
    assert [(left.point, left.seconds) for left in found.left_out] == [("max", None)]
    json.dumps([asdict(left) for left in found.left_out], allow_nan=False)  # As in a manifest.
    assert (
        said[-1]
        == "verification leaves out products at max (rows=4096), which takes more memory than is available"
    )


def test_verification_is_refused_when_memory_does_not_hold_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_export.sizing.budget.available_memory", lambda: 1_000_100)
    with pytest.raises(
        InsufficientResources, match=r"activations at its smallest sizes, got too little for products; try"
    ):
        choose_for_machine([products(256)], (), 300.0, Device.CPU, {"products": 1_000_000}, lambda _: None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "under 1 s"), (45, "45 s"), (700, "11.7 min"), (9000, "2.5 h"), (5 * 86400, "5 days")],
)
def test_duration_is_in_the_unit_that_people_use_when_it_grows(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
