"""What users are promised, by model, and which promises a run broke.

A promise about each answer (`good`) decides which answers count as goodput; promises about percentiles and
shares decide, with the goodput, whether the objective was kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipway_serving.errors import InvalidRequest

if TYPE_CHECKING:
    from slipway_loadtests.load.summary import Figures

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Objective:
    """What users of one model are promised. Measures are those of :mod:`slipway_loadtests.load.outcomes`.

    Attributes:
        good: the most that each measure of a good answer may be, by measure; the mean where it has several.
        p50: the most that half of the values may be, by measure.
        p95: the same of 95 of 100.
        p99: the same of 99 of 100.
        least_good_share: of the answers, 0 to 1.
        least_goodput_per_s: good answers per second.
        most_rejected_share: of what was sent, 0 to 1.
        most_failed_share: the same of what neither was answered nor rejected, nor cancelled by the user.
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
        """Tell whether an answer with these measures is a good one."""
        return all(
            sum(measures[name]) <= most * len(measures[name])
            for name, most in self.good.items()
            if measures.get(name)
        )

    def broken(self, figures: Figures) -> list[str]:
        """Return a sentence for each promise that a run broke; one without an answer breaks all."""
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
    """Make objectives of what YAML or JSON says of them.

    Args:
        given: model → key of an :class:`Objective` → number, or measure → number.

    Raises:
        InvalidRequest: an objective has an unknown key, or something else than numbers.
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
