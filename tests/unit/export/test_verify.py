"""Parity rows: what they measure, and that a difference is not let through."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from line_graph import BOUND, linear, write_graph

from slipway_export.graph.onnx import example_inputs
from slipway_export.spec import Axis, Component, DType, Precision, TensorSpec, Tolerance
from slipway_export.verification.comparison import (
    EXACT,
    ParityFailed,
    ParityRow,
    check_parity,
    compare,
    compute_reference,
    load_graph,
    load_reference,
    output_tolerance,
    run_at,
    verify,
)
from slipway_serving.protocol.errors import InvalidRequest

TENSOR = TensorSpec("sample", DType.FLOAT32, ("rows",))
NET = Component(
    "net", (TENSOR,), (TENSOR,), (Axis("rows", 1, 4, 8),), lambda *_: None, {Precision.FP32: BOUND}
)  # type: ignore[arg-type, return-value]


def row(actual: np.ndarray, expected: np.ndarray) -> ParityRow:
    return compare(NET, "sample", "opt (rows=4)", actual, expected, BOUND, "here")


def test_compare_measures_distance_and_angle() -> None:
    measured = row(np.array([3.0, 4.0]), np.array([3.0, 0.0]))
    assert measured.max_abs == 4.0
    assert measured.relative_l2 == pytest.approx(4 / 3)
    assert measured.cosine == pytest.approx(0.6)


def test_equal_outputs_pass_even_when_all_zero() -> None:
    check_parity([row(np.zeros(4), np.zeros(4)), row(np.arange(4.0), np.arange(4.0))])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (np.array([0.0, 0.0, 0.0, 2e-3]), "max abs must be <= 0.001"),
        (np.array([1e-3, 1e-3, 1e-3, 1e-3]), "relative L2 must be <= 0.0001"),
        (np.array([-2.0, -4.0, 0.0, 0.0]), "cosine must be >= 0.9999"),
        (np.array([np.nan, 0.0, 0.0, 0.0]), "max abs"),
    ],
)
def test_check_names_graph_output_point_and_bound_when_an_output_is_off(
    change: np.ndarray, named: str
) -> None:
    expected = np.array([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ParityFailed, match="net: sample at opt") as failure:
        check_parity([row(expected + change, expected)])
    assert named in str(failure.value)


def test_row_that_is_lost_in_others_is_named_when_its_bound_asks_for_each() -> None:
    expected = np.random.default_rng(0).standard_normal((2, 50, 32))
    actual = expected.copy()
    actual[1, 7] = -expected[1, 7]
    loose = Tolerance(max_abs=100.0, relative_l2=0.3, cosine=0.95)
    strict = Tolerance(max_abs=100.0, relative_l2=0.3, cosine=0.95, row_cosine=0.93)
    whole, rows = (
        compare(NET, "sample", "opt (rows=4)", actual, expected, bound, "here") for bound in (loose, strict)
    )
    check_parity([whole])
    assert whole.row_cosine is None
    assert rows.row_cosine == pytest.approx(-1)
    with pytest.raises(ParityFailed, match="cosine of the worst row must be >= 0.93, got -1"):
        check_parity([rows])


@pytest.mark.parametrize(
    ("row", "cosine"), [(np.zeros(4), 1.0), (np.ones(4), 0.0), (np.full(4, np.nan), None)]
)
def test_row_of_zeros_is_like_another_only(row: np.ndarray, cosine: float | None) -> None:
    bound = Tolerance(max_abs=100.0, relative_l2=100.0, cosine=-1.0, row_cosine=-1.0)
    measured = compare(NET, "sample", "opt", row[None], np.zeros((1, 4)), bound, "here")
    if cosine is None:
        assert any("worst row" in failure for failure in measured.failures)
    else:
        assert measured.row_cosine == cosine


@pytest.mark.parametrize(
    ("actual", "expected", "largest"),
    [
        (np.array([2**62 + 1]), np.array([2**62]), 1.0),
        (np.array([2**63 - 1]), np.array([-(2**63)]), 2.0**64),
        (np.array([0, 255], np.uint8), np.array([255, 0], np.uint8), 255.0),
        (np.array([True, False]), np.array([True, True]), 1.0),
        (np.array([-7], np.int32), np.array([5], np.int32), 12.0),
    ],
)
def test_compare_of_whole_numbers_does_not_round(
    actual: np.ndarray, expected: np.ndarray, largest: float
) -> None:
    wrong = compare(NET, "sample", "opt (rows=4)", actual, expected, EXACT, "here")
    assert wrong.max_abs == largest
    with pytest.raises(ParityFailed, match="max abs must be <= 0"):
        check_parity([wrong])
    equal = compare(NET, "sample", "opt (rows=4)", expected, expected, EXACT, "here")
    assert (equal.max_abs, equal.relative_l2, equal.cosine) == (0.0, 0.0, 1.0)
    check_parity([equal])


def test_compare_refuses_other_dtype() -> None:
    with pytest.raises(ParityFailed, match="sample at opt .* must be int64, got int32"):
        row(np.ones(3, np.int32), np.ones(3, np.int64))


def test_exact_output_has_exact_bounds_whatever_the_precision() -> None:
    labels = TensorSpec("labels", DType.INT64, ("rows",), exact=True)
    assert output_tolerance(NET, labels, Precision.FP32) == EXACT
    assert output_tolerance(NET, TENSOR, Precision.FP32) == BOUND


def test_check_names_all_failing_outputs() -> None:
    bad = [row(np.ones(2), np.zeros(2)), row(np.full(2, 5.0), np.zeros(2))]
    with pytest.raises(ParityFailed) as failure:
        check_parity(bad)
    assert str(failure.value).count("net: sample") == 2


def test_compare_refuses_other_shape() -> None:
    with pytest.raises(ParityFailed, match=r"shape \[2\], got \[3\]"):
        row(np.ones(3), np.ones(2))


def test_row_passes_when_its_values_are_exactly_its_bounds() -> None:
    bound = Tolerance(max_abs=0.5, relative_l2=0.25, cosine=0.75, row_cosine=0.5)
    kept = ParityRow("net", "sample", "opt", (1,), 0.5, 0.25, 0.75, bound, "here", 0.5)
    assert kept.failures == []
    for change, said in [
        ({"max_abs": 0.51}, "max abs must be <= 0.5, got 0.51"),
        ({"relative_l2": 0.26}, "relative L2 must be <= 0.25, got 0.26"),
        ({"cosine": 0.74}, "cosine must be >= 0.75, got 0.74"),
        ({"row_cosine": 0.49}, "cosine of the worst row must be >= 0.5, got 0.49"),
    ]:
        assert replace(kept, **change).failures == [said]  # type: ignore[arg-type]
    assert replace(kept, row_cosine=None).failures == []


def test_compare_says_what_it_compared_and_measures_against_the_reference() -> None:
    measured = row(np.array([[2.0, 0.0]]), np.array([[0.0, 0.0]]))
    assert (measured.graph, measured.output, measured.point) == ("net", "sample", "opt (rows=4)")
    assert (measured.shape, measured.bound, measured.verified_on) == ((1, 2), BOUND, "here")
    # Without a norm to relate to, the error itself.
    assert (measured.max_abs, measured.relative_l2, measured.cosine) == (2.0, 2.0, 0.0)
    assert row(np.zeros((1, 2)), np.array([[0.0, 4.0]])).relative_l2 == 1.0
    empty = row(np.zeros((0, 2)), np.zeros((0, 2)))
    assert (empty.max_abs, empty.relative_l2, empty.cosine) == (0.0, 0.0, 1.0)


def test_reference_is_of_all_points_when_none_are_given() -> None:
    component = linear()
    network = load_reference(component)
    reference = compute_reference(component, network)
    assert reference.points == component.points()
    for name, point in component.points().items():
        x = reference.inputs[name]["x"]
        np.testing.assert_array_equal(x, example_inputs(component, point, seed=1)["x"])
        np.testing.assert_allclose(reference.outputs[name]["y"], 2 * x + 1, rtol=1e-6)
        assert reference.outputs[name]["count"].tolist() == [point["rows"]]
    chosen = compute_reference(component, network, {"one": {"rows": 2}})
    assert list(chosen.outputs) == ["one"]
    assert chosen.outputs["one"]["y"].shape == (2, 3)


@pytest.mark.parametrize(
    ("component", "said"),
    [
        (linear(width=4), "y at min (rows=1) must be float32 [1, 4] as described, got float32 [1, 3]"),
        (
            linear(dtype=DType.INT64),
            "y at min (rows=1) must be int64 [1, 3] as described, got float32 [1, 3]",
        ),
    ],
    ids=["shape", "dtype"],
)
def test_reference_is_refused_when_the_network_gives_something_else(component: Component, said: str) -> None:
    with pytest.raises(InvalidRequest) as failure:
        compute_reference(component, load_reference(component))
    text = str(failure.value)
    assert text.startswith(f"line: {said} | y at opt (rows=4) must be ")
    # Each point is named once, and the count is as described.
    assert text.count(" | ") == len(component.points()) - 1
    assert "count" not in text


def test_graph_is_compared_at_every_point_when_it_is_verified(tmp_path: Path) -> None:
    component = linear()
    reference = compute_reference(component, load_reference(component))
    rows = verify(component, write_graph(tmp_path / "model.onnx"), reference, Precision.FP32)
    check_parity(rows)
    points = [f"{name} (rows={point['rows']})" for name, point in component.points().items()]
    assert [(row.output, row.point) for row in rows] == [
        (output, point) for point in points for output in ("y", "count")
    ]
    assert {row.output: row.bound for row in rows} == {"y": BOUND, "count": EXACT}
    assert {row.verified_on for row in rows} == {"ONNX Runtime CPU"}
    wrong = verify(component, write_graph(tmp_path / "wrong.onnx", 2.5), reference, Precision.FP32)
    assert [bool(row.failures) for row in wrong] == [True, False] * len(points)


def test_bfloat16_graph_is_widened_beside_what_it_is_of_when_the_cpu_runs_it(tmp_path: Path) -> None:
    component = linear()
    reference = compute_reference(component, load_reference(component))
    path = write_graph(tmp_path / "model.onnx", 2.0078125, bfloat16=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for folder in (None, scratch):
        rows = verify(component, path, reference, Precision.BF16, scratch=folder)
        check_parity(rows)
        assert {row.verified_on for row in rows} == {"ONNX Runtime CPU, bfloat16 widened to float32"}
        # The weight is what bfloat16 makes of it: 2.0078125 becomes 2.
        assert max(row.max_abs for row in rows) < 1e-5
        assert rows[0].bound == component.tolerance[Precision.BF16]
        assert ((folder or tmp_path) / "model.widened").exists()
    widened = onnx.load(scratch / "model.widened")
    kinds = {weight.data_type for weight in widened.graph.initializer}
    assert kinds == {onnx.TensorProto.FLOAT}


def test_graph_is_refused_when_it_does_not_load_or_run(tmp_path: Path) -> None:
    component = linear()
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(ParityFailed, match=r"^line: ONNX Runtime could not load the graph: .*; nothing"):
        load_graph(component, tmp_path / "broken.onnx", Precision.FP32)
    run, place = load_graph(component, write_graph(tmp_path / "model.onnx"), Precision.FP32)
    assert place == "ONNX Runtime CPU"
    found = run({"x": np.zeros((2, 3), np.float32)})
    assert found["y"].tolist() == [[1.0] * 3] * 2
    assert found["count"].tolist() == [2]
    with pytest.raises(
        ParityFailed, match=r"line: the graph failed in ONNX Runtime at max: .*; nothing was placed$"
    ):
        run_at(component, run, {"x": np.zeros((2, 4), np.float32)}, "max")
    with pytest.raises(
        ParityFailed, match=r"line: the graph failed in ONNX Runtime at max: KeyError; nothing"
    ):
        run_at(component, lambda _: (_ for _ in ()).throw(KeyError()), {}, "max")
    with pytest.raises(ParityFailed, match=r"line: the graph failed in ONNX Runtime at max: first; nothing"):
        run_at(component, lambda _: (_ for _ in ()).throw(ValueError("first\nsecond")), {}, "max")
