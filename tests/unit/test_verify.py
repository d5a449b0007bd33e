"""Parity rows: what they measure, and that a difference is not let through."""

import numpy as np
import pytest

from slipway_export.spec import Axis, Component, DType, Precision, TensorSpec, Tolerance
from slipway_export.verify import EXACT, ParityFailed, ParityRow, bound_of, check, compare

BOUND = Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.9999)
TENSOR = TensorSpec("sample", DType.FLOAT32, ("rows",))
NET = Component(
    "net", (TENSOR,), (TENSOR,), (Axis("rows", 1, 4, 8),), lambda _: None, {Precision.FP32: BOUND}
)  # type: ignore[arg-type, return-value]


def row(actual: np.ndarray, expected: np.ndarray) -> ParityRow:
    return compare(NET, "sample", "opt (rows=4)", actual, expected, BOUND, "here")


def test_compare_measures_distance_and_angle() -> None:
    measured = row(np.array([3.0, 4.0]), np.array([3.0, 0.0]))
    assert measured.max_abs == 4.0
    assert measured.relative_l2 == pytest.approx(4 / 3)
    assert measured.cosine == pytest.approx(0.6)


def test_equal_outputs_pass_even_when_all_zero() -> None:
    check([row(np.zeros(4), np.zeros(4)), row(np.arange(4.0), np.arange(4.0))])


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
        check([row(expected + change, expected)])
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
    check([whole])
    assert whole.row_cosine is None
    assert rows.row_cosine == pytest.approx(-1)
    with pytest.raises(ParityFailed, match="cosine of the worst row must be >= 0.93, got -1"):
        check([rows])


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
        check([wrong])
    equal = compare(NET, "sample", "opt (rows=4)", expected, expected, EXACT, "here")
    assert (equal.max_abs, equal.relative_l2, equal.cosine) == (0.0, 0.0, 1.0)
    check([equal])


def test_compare_refuses_other_dtype() -> None:
    with pytest.raises(ParityFailed, match="sample at opt .* must be int64, got int32"):
        row(np.ones(3, np.int32), np.ones(3, np.int64))


def test_exact_output_has_exact_bounds_whatever_the_precision() -> None:
    labels = TensorSpec("labels", DType.INT64, ("rows",), exact=True)
    assert bound_of(NET, labels, Precision.FP32) == EXACT
    assert bound_of(NET, TENSOR, Precision.FP32) == BOUND


def test_check_names_all_failing_outputs() -> None:
    bad = [row(np.ones(2), np.zeros(2)), row(np.full(2, 5.0), np.zeros(2))]
    with pytest.raises(ParityFailed) as failure:
        check(bad)
    assert str(failure.value).count("net: sample") == 2


def test_compare_refuses_other_shape() -> None:
    with pytest.raises(ParityFailed, match=r"shape \[2\], got \[3\]"):
        row(np.ones(3), np.ones(2))
