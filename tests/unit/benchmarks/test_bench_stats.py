"""The arithmetic of the benchmarks on numbers whose answers are known."""

from __future__ import annotations

import pytest

from slipway_benchmarks.stats import fit_line, quartiles, ratios, summarize


def test_summary_has_min_median_max_and_values_in_order_when_summarized() -> None:
    summary = summarize([3.0, 1.0, 2.0, 10.0])
    assert (summary.min, summary.median, summary.max) == (1.0, 2.5, 10.0)
    assert summary.values == (3.0, 1.0, 2.0, 10.0)


def test_ratio_is_above_one_when_the_other_is_faster() -> None:
    assert ratios([4.0, 9.0], [2.0, 3.0]) == [2.0, 3.0]


def test_ratios_are_refused_when_rounds_differ() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_line_is_found_exactly_when_points_lie_on_it() -> None:
    line = fit_line([2, 4, 8, 16], [107, 114, 128, 156])
    assert (line.slope, line.intercept) == pytest.approx((3.5, 100))
    assert line.r2 == pytest.approx(1.0)


def test_line_fits_worse_when_growth_is_quadratic() -> None:
    sizes = [2.0, 4.0, 8.0, 16.0]
    assert 0.9 < fit_line(sizes, [size**2 for size in sizes]).r2 < 0.98


def test_line_explains_all_when_nothing_grows() -> None:
    line = fit_line([1, 2, 3], [5, 5, 5])
    assert (line.slope, line.intercept, line.r2) == (0.0, 5.0, 1.0)


def test_line_is_refused_when_all_points_have_one_x() -> None:
    with pytest.raises(ValueError, match="two points"):
        fit_line([2, 2], [1, 3])


def test_quartiles_are_between_values_when_no_value_is_there() -> None:
    assert quartiles([1.0, 2.0, 3.0, 4.0]) == (1.75, 3.25)
    assert quartiles([5.0]) == (5.0, 5.0)
