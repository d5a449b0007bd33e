"""Service level objectives by model, and the check of a run against them.

An objective for each answer (`good`) decides which answers count as goodput. Objectives for percentiles and
shares decide, with the goodput, whether the run kept its objective.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from slipway_loadtests.load.figures import PERCENTILES, Figures
from slipway_serving.protocol.errors import InvalidRequest


@dataclass(frozen=True)
class Objective:
    """Objective of one model. Its measures are those of :mod:`slipway_loadtests.load.outcomes`.

    Attributes:
        good: Upper limits of a good answer by measure; the mean counts if a measure has several values.
        p50: Upper limits of the 50th percentile by measure.
        p95: Upper limits of the 95th percentile by measure.
        p99: Upper limits of the 99th percentile by measure.
        least_good_share: Smallest share of good answers among the answers, 0 to 1.
        least_goodput_per_s: Smallest number of good answers per second.
        most_rejected_share: Largest share of rejected requests among those sent, 0 to 1.
        most_failed_share: Largest share of requests that were neither answered nor rejected, nor cancelled by
            the user, 0 to 1.
    """

    good: Mapping[str, float] = field(default_factory=dict)
    p50: Mapping[str, float] = field(default_factory=dict)
    p95: Mapping[str, float] = field(default_factory=dict)
    p99: Mapping[str, float] = field(default_factory=dict)
    least_good_share: float | None = None
    least_goodput_per_s: float | None = None
    most_rejected_share: float | None = None
    most_failed_share: float | None = None

    def is_good(self, measures: Mapping[str, tuple[float, ...]]) -> bool:
        """Return whether an answer with these measures is good."""
        return all(
            sum(measures[name]) <= most * len(measures[name])
            for name, most in self.good.items()
            if measures.get(name)
        )

    def broken(self, figures: Figures) -> list[str]:
        """Return a sentence for each objective that a run missed; without an answer, it missed them all."""
        if not figures.answered:
            return [f"{figures.model}: requests must be answered, got no answer of {figures.sent}"]
        return [f"{figures.model}: {sentence}" for sentence in self._broken(figures)]

    def _broken(self, figures: Figures) -> Iterator[str]:
        for percent in PERCENTILES:
            for name, most in getattr(self, f"p{percent}").items():
                found = figures.measures.get(name)
                if found is None:
                    yield f"p{percent} of {name} must be {most:g} or less, got no such measure"
                elif (got := getattr(found, f"p{percent}")) > most:
                    yield f"p{percent} of {name} must be {most:g} or less, got {got:.4g}"
        for name in ("good_share", "goodput_per_s"):
            least, got = getattr(self, f"least_{name}"), getattr(figures, name)
            if least is not None and got < least:
                yield f"{name} must be {least:g} or more, got {got:.4g}"
        for name in ("rejected_share", "failed_share"):
            most, got = getattr(self, f"most_{name}"), getattr(figures, name)
            if most is not None and got > most:
                yield f"{name} must be {most:g} or less, got {got:.4g}"


def objectives_of(given: Any) -> dict[str, Objective]:
    """Convert parsed YAML or JSON to objectives.

    Args:
        given: Mapping of model → key of an :class:`Objective` → number, or measure → number.

    Raises:
        InvalidRequest: An objective has an unknown key, or a value that is not a number of 0 or more.
    """
    known = {each.name for each in dataclasses.fields(Objective)}
    made = {}
    for model, promises in (given if isinstance(given, dict) else {"slo": given}).items():
        if not isinstance(promises, dict) or not set(promises) <= known:
            raise InvalidRequest(
                f"load: slo of {model} must have keys of {sorted(known)}, got {promises!r}; try p95"
            )
        for key, value in promises.items():
            numbers = value.values() if isinstance(value, dict) else [value]
            if isinstance(value, dict) != (key in ("good", "p50", "p95", "p99")) and value is not None:
                raise InvalidRequest(f"load: slo of {model}: {key} has the wrong form, got {value!r}")
            if not all(x is None or (isinstance(x, int | float) and 0 <= x < math.inf) for x in numbers):
                raise InvalidRequest(f"load: slo of {model}: {key} must be 0 or more, got {value!r}")
        made[str(model)] = Objective(**promises)
    return made
