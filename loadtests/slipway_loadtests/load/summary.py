"""Figures from outcomes: of the whole run and of each stage, the knee, and the missed objectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipway_loadtests.load.figures import Figures, Spread, spread_of
from slipway_loadtests.load.outcomes import ANSWERED, CANCELLED, REJECTED, Outcome
from slipway_loadtests.load.plan import Plan, Stage
from slipway_loadtests.load.slo import Objective

KNEE_SHARE = 0.9
"""Share that defines the knee. With closed arrivals, the knee is the lowest level that reaches this share of
the highest throughput of any stage; with open arrivals, the highest level at which this share of the requests
due in a stage is answered in it."""


@dataclass(frozen=True)
class Staged:
    """Figures of one stage."""

    stage: Stage
    figures: Figures


@dataclass(frozen=True)
class ModelSummary:
    """Figures of a run for the users of one model.

    Attributes:
        whole: Figures of all stages together.
        stages: Figures of each stage.
        knee: Level of the stage at the knee; None if the run has one level only, or no knee.
        errors: Number of failures by text, the most frequent first.
    """

    whole: Figures
    stages: tuple[Staged, ...]
    knee: float | None
    errors: Mapping[str, int]


@dataclass(frozen=True)
class Summary:
    """Figures of a run.

    Attributes:
        models: Figures by model.
        broken: Missed objectives, a sentence each.
        refusals: Reasons why users could not start, a sentence each.
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
        plan: Plan of the run; if it has no stages, the run ends with its last outcome.
        models: Names of the models under test; objectives of others do not count.
        begun_s: Time at which the run began, in seconds since the epoch.
        outcomes: Outcomes of the requests.
        refusals: Reasons why users could not start.
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


def _knee(stages: Sequence[Staged], *, closed: bool) -> float | None:
    """Return the level at the knee, or None if there are no answers or only one level."""
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
