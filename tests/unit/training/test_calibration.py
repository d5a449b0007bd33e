"""The choice of a threshold, its table and its plot."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from slipway_serving.protocol.errors import InvalidRequest
from slipway_training.calibration import THRESHOLDS, as_csv, calibrate, plot


def test_calibrate_takes_the_middle_of_equally_good_thresholds() -> None:
    found = calibrate(np.array([0.8, 0.9]), np.array([0.1, 0.2]), max_false_accepts=0.0)
    # Everything above 0.2 up to 0.8 separates the two.
    assert found.chosen.threshold == 0.5
    assert (found.chosen.false_accepts, found.chosen.false_rejects) == (0.0, 0.0)


def test_calibrate_rejects_the_word_rather_than_accept_too_much_else() -> None:
    positive, negative = np.array([0.3, 0.6, 0.9]), np.array([0.1, 0.2, 0.5, 0.7])
    strict = calibrate(positive, negative, max_false_accepts=0.0)
    lenient = calibrate(positive, negative, max_false_accepts=0.25)
    assert strict.chosen.threshold > 0.7
    assert strict.chosen.false_rejects == pytest.approx(2 / 3)
    assert 0.5 < lenient.chosen.threshold <= 0.6
    assert (lenient.chosen.false_accepts, lenient.chosen.false_rejects) == (0.25, pytest.approx(1 / 3))


def test_calibrate_is_refused_when_no_threshold_is_good_enough() -> None:
    with pytest.raises(InvalidRequest, match="max-false-accepts must be reachable, got 0.01 .* 50.0%"):
        calibrate(np.array([0.9]), np.array([0.9995, 0.1]), max_false_accepts=0.01)


def test_rates_are_written_as_a_table_and_a_plot(tmp_path: Path) -> None:
    found = calibrate(np.array([0.8, 0.9]), np.array([0.1, 0.2]), max_false_accepts=0.0)
    rows = list(csv.DictReader(as_csv(found.rates).splitlines()))
    assert [float(row["threshold"]) for row in rows] == list(THRESHOLDS)
    assert rows[0] == {"threshold": "0.01", "false_accepts": "1.0", "false_rejects": "0.0"}
    assert rows[-1] == {"threshold": "0.999", "false_accepts": "0.0", "false_rejects": "1.0"}
    plot(found, "jarvis", tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
