"""Progress of an export: which component is being made, and the estimated time that remains.

The parameters of the components to be made, which are known beforehand, measure the work. An estimate is
given once the first component is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

Report = Callable[[str], None]


class Progress:
    """Reporter that adds to each line of an export the component at hand and the estimated time that remains.

    Args:
        report: Callback that receives the lines.
        labels: Labels of the components, in their order.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self, report: Report, labels: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._report, self._labels, self._clock = report, list(labels), clock
        self._work: Mapping[str, float] = {}
        self._index, self._started, self._component_started = 0, clock(), clock()

    def expect(self, work: Mapping[str, float]) -> None:
        """Start the estimate, given the work of each component to be made, by label and in any unit."""
        self._work, self._index, self._started = work, 0, self._clock()

    def begin(self, label: str) -> None:
        """Mark all components before the given one as done."""
        self._index, self._component_started = self._labels.index(label), self._clock()

    def __call__(self, line: str) -> None:
        """Report a line about the component that was begun last."""
        self._report(f"[{self._index + 1}/{len(self._labels)}] {line}{self._remaining()}")

    def _remaining(self) -> str:
        """Return the share of the work that is done and the estimated time that remains, as text."""
        done, rest = (
            sum(self._work.get(label, 0) for label in labels)
            for labels in (self._labels[: self._index], self._labels[self._index :])
        )
        if not done or not rest:
            return ""
        left = (self._component_started - self._started) * rest / done - (
            self._clock() - self._component_started
        )
        about = f", about {format_duration(left)} left" if left > 0 else ""
        return f" ({done / (done + rest):.0%} done{about})"


def format_duration(seconds: float) -> str:
    """Format a duration for people: ``45 s``, ``12 min``, ``3.4 h``, ``5.1 days``."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= (2 * length if unit != "min" else 10 * length):
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "under 1 s"


def format_bytes(size: float) -> str:
    """Format a size for people: ``28.6 GB``, ``450 MB``, ``2.16 MB``, ``804 bytes``."""
    if size >= 999.5e6:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.3g} MB" if size >= 1e4 else f"{size:.0f} bytes"
