"""Times of the steps of a video, from the times at which they ended."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise

from slipway_client import Progress


def step_ends_s(events: Iterable[object]) -> list[float]:
    """Return the times of the progress events of a run, each at the end of a step, in seconds."""
    return [event.elapsed_s for event in events if isinstance(event, Progress) and event.phase is None]


def step_ms(ends_s: Sequence[float]) -> float:
    """Return the median time between the ends of at least two steps, in milliseconds."""
    return 1000 * statistics.median([later - earlier for earlier, later in pairwise(ends_s)])


def denoise_ms(ends_s: Sequence[float]) -> float:
    """Return the time of all steps, from the start of the first to the end of the last, in milliseconds.

    Nothing reports the start of the first step, which therefore counts as the median of the others.

    Args:
        ends_s: Times at which at least two steps ended, in seconds.
    """
    return 1000 * (ends_s[-1] - ends_s[0]) + step_ms(ends_s)
