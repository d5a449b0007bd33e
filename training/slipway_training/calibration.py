"""Choice of a wake word's detection threshold from false accepts and false rejects.

A false accept is a detection in a window without the word. A false reject is a missed window with the word.
The chosen threshold has the fewest false rejects among those within the allowed share of false accepts.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import InvalidRequest

# Thresholds are denser near 1: an hour has thousands of windows, so thousandths decide whether false accepts
# per hour are few.
THRESHOLDS = (*(each / 100 for each in range(1, 90)), *(each / 1000 for each in range(900, 1000)))


@dataclass(frozen=True)
class Rates:
    """Error rates of the held-out windows at one threshold.

    Args:
        threshold: Smallest probability at which the word counts as detected.
        false_accepts: Share of the windows without the word that are detected.
        false_rejects: Share of the windows with the word that are missed.
    """

    threshold: float
    false_accepts: float
    false_rejects: float


@dataclass(frozen=True)
class Calibration:
    """Error rates at every threshold, and the chosen threshold.

    Args:
        rates: Rates in ascending order of the threshold.
        chosen: Rates of the chosen threshold, one of `rates`.
    """

    rates: tuple[Rates, ...]
    chosen: Rates


def calibrate(positive: NDArray[Any], negative: NDArray[Any], max_false_accepts: float) -> Calibration:
    """Choose the threshold with the fewest false rejects within a bound on false accepts.

    Args:
        positive: Probabilities of windows with the word, [n].
        negative: Probabilities of windows without the word, [m].
        max_false_accepts: Largest allowed share of detected negative windows, 0 to 1.

    Returns:
        The rates and the chosen threshold. Of equally good thresholds it is the middle one, which is
        furthest from both kinds of windows.

    Raises:
        InvalidRequest: No threshold keeps the false accepts within the bound.
    """
    rates = tuple(
        Rates(threshold, float(np.mean(negative >= threshold)), float(np.mean(positive < threshold)))
        for threshold in THRESHOLDS
    )
    allowed = [rate for rate in rates if rate.false_accepts <= max_false_accepts]
    if not allowed:
        raise InvalidRequest(
            f"train: max-false-accepts must be reachable, got {max_false_accepts:g} where even a threshold of"
            f" {THRESHOLDS[-1]} accepts {rates[-1].false_accepts:.1%} of the held-out negative windows;"
            " try more and other negative recordings, or look for the word among them"
        )
    fewest = min(rate.false_rejects for rate in allowed)
    best = [rate for rate in allowed if rate.false_rejects == fewest]
    return Calibration(rates, best[(len(best) - 1) // 2])


def as_csv(rates: Sequence[Rates]) -> str:
    """Return the table as CSV with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("threshold", "false_accepts", "false_rejects"))
    writer.writerows((rate.threshold, rate.false_accepts, rate.false_rejects) for rate in rates)
    return text.getvalue()


def plot(calibration: Calibration, title: str, path: Path) -> None:
    """Draw both rates over the threshold into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    thresholds = [rate.threshold for rate in calibration.rates]
    axes.plot(thresholds, [100 * rate.false_accepts for rate in calibration.rates], label="false accepts")
    axes.plot(thresholds, [100 * rate.false_rejects for rate in calibration.rates], label="false rejects")
    chosen = calibration.chosen.threshold
    axes.axvline(chosen, color="0.4", linestyle="--", label=f"threshold {chosen:g}")
    axes.set(
        title=title, xlabel="threshold", ylabel="share of held-out windows, %", xlim=(0, 1), ylim=(0, None)
    )
    axes.legend()
    figure.savefig(path, dpi=120, format="png")
