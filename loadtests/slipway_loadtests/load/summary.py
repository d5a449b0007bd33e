"""From outcomes to figures: of the whole run and of each stage, the knee, and promises that were broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipway_loadtests.load.outcomes import ANSWERED, CANCELLED, REJECTED, Outcome
from slipway_loadtests.load.plan import Plan, Stage
from slipway_loadtests.load.slo import PERCENTILES, Objective

KNEE_SHARE = 0.9
"""Closed, the knee is the lowest level with this share of the most answers per second of any stage; open, the
highest at which so many of what was sent are answered in the same time."""


@dataclass(frozen=True)
class Spread:
    """How the values of a measure are spread."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True)
class Figures:
    """What became of the requests to one model in a time.

    Attributes:
        model: that was asked.
        seconds: how long the time was.
        sent: requests that were due in it.
        ended: how they ended.
        per_s: answers per second that came in it.
        goodput_per_s: those of them that kept the promise about each answer.
        good_share: of the answers that came in it; 0 where none came.
        rejected_share: of what was due.
        failed_share: of what was due: neither answered nor rejected, nor cancelled by its user.
        measures: of the answers to what was due in it.
    """

    model: str
    seconds: float
    sent: int
    ended: Mapping[str, int]
    per_s: float
    goodput_per_s: float
    good_share: float
    rejected_share: float
    failed_share: float
    measures: Mapping[str, Spread]

    @property
    def answered(self) -> int:
        """How many of the requests were answered."""
        return self.ended.get(ANSWERED, 0)


@dataclass(frozen=True)
class Staged:
    """The figures of one stage."""

    stage: Stage
    figures: Figures


@dataclass(frozen=True)
class ModelSummary:
    """A run as the users of one model saw it.

    Attributes:
        whole: figures of all stages together.
        stages: figures of each.
        knee: level of the stage at the knee; None in a run of one level, or without one.
        errors: texts of what failed, with how often, the most frequent first.
    """

    whole: Figures
    stages: tuple[Staged, ...]
    knee: float | None
    errors: Mapping[str, int]


@dataclass(frozen=True)
class Summary:
    """A run.

    Attributes:
        models: by name.
        broken: promises that were, a sentence each.
        refusals: why users could not begin, a sentence each.
    """

    models: Mapping[str, ModelSummary]
    broken: tuple[str, ...]
    refusals: tuple[str, ...]


def summarize(
    plan: Plan,
    models: Collection[str],
    begun_s: float,
    outcomes: Sequence[Outcome],
    refusals: Sequence[str],
) -> Summary:
    """Return the figures of a run.

    Args:
        plan: of the run; without stages, the run is one that ends with its last outcome.
        models: that were to be asked; promises about others do not count.
        begun_s: when it began, seconds since the epoch.
        outcomes: of its requests.
        refusals: why users could not begin.
    """
    last_s = max((each.ended_s for each in outcomes), default=begun_s + 1.0) - begun_s
    stages = plan.stages or (Stage(max(last_s, 1e-3), 0.0),)
    by_model: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_model.setdefault(outcome.model, []).append(outcome)
    found_of = {}
    for model in sorted(models):
        objective = plan.slo.get(model, Objective())
        found = by_model.get(model, [])
        found_of[model] = _of_model(
            model, objective, begun_s, stages, found, closed=plan.arrivals == "closed"
        )
    broken = [
        sentence
        for model, found in found_of.items()
        for sentence in plan.slo.get(model, Objective()).broken(found.whole)
    ]
    return Summary(found_of, tuple(broken), tuple(refusals))


def _of_model(
    model: str,
    objective: Objective,
    begun_s: float,
    stages: Sequence[Stage],
    outcomes: Sequence[Outcome],
    *,
    closed: bool,
) -> ModelSummary:
    ends_s = begun_s + np.cumsum([stage.seconds for stage in stages])
    figures = []
    for stage, end_s in zip(stages, ends_s.tolist(), strict=True):
        span = (end_s - stage.seconds, end_s)
        figures.append(Staged(stage, _figures(model, objective, outcomes, span)))
    whole = _figures(model, objective, outcomes, (begun_s, float(ends_s[-1])))
    errors = Counter(f"{each.ended}: {each.said}" for each in outcomes if each.said)
    return ModelSummary(whole, tuple(figures), _knee(figures, closed=closed), dict(errors.most_common(20)))


def _figures(
    model: str, objective: Objective, outcomes: Sequence[Outcome], span_s: tuple[float, float]
) -> Figures:
    begun_s, end_s = span_s
    due = [each for each in outcomes if begun_s <= each.due_s < end_s]
    came = [each for each in outcomes if each.ended == ANSWERED and begun_s <= each.ended_s < end_s]
    good = sum(objective.is_good(each.measures) for each in came)
    ended = Counter(each.ended for each in due)
    sent, seconds = sum(ended.values()), end_s - begun_s
    known = ended[ANSWERED] + ended[REJECTED] + ended[CANCELLED]
    return Figures(
        model,
        seconds,
        sent,
        dict(ended),
        per_s=len(came) / seconds,
        goodput_per_s=good / seconds,
        good_share=good / len(came) if came else 0.0,
        rejected_share=ended[REJECTED] / max(sent, 1),
        failed_share=(sent - known) / max(sent, 1),
        measures=_spreads(due),
    )


def _spreads(outcomes: Iterable[Outcome]) -> dict[str, Spread]:
    values: dict[str, list[float]] = {}
    for outcome in outcomes:
        for name, found in outcome.measures.items():
            values.setdefault(name, []).extend(found)
    return {name: spread_of(found) for name, found in values.items()}


def spread_of(values: Sequence[float]) -> Spread:
    """Return how one or more values are spread."""
    p50, p95, p99 = np.percentile(values, PERCENTILES).tolist()
    return Spread(len(values), float(np.mean(values)), p50, p95, p99, float(np.max(values)))


def _knee(stages: Sequence[Staged], *, closed: bool) -> float | None:
    """Return the level at the knee; None without an answer, or with one level only."""
    most = max(each.figures.per_s for each in stages)
    if len({each.stage.level for each in stages}) < 2 or not most:
        return None
    if closed:
        return min(each.stage.level for each in stages if each.figures.per_s >= KNEE_SHARE * most)
    kept = [
        each.stage.level
        for each in stages
        if each.figures.sent and each.figures.per_s >= KNEE_SHARE * each.figures.sent / each.figures.seconds
    ]
    return max(kept, default=None)
