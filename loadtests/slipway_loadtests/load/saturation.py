"""Search for a server's saturation point, compared with the prediction of the capacity model.

    users 1, 2, 4, … ─▶ service time and rates ─▶ capacity model ─▶ predicted maximum
                                                                          │
    knee, three times too much ◀─ stages of arrivals, or of sessions ◀────┘

The first run is closed: each user sends its next request at once, and a session's turns are not paced. The
second run is open if visits are single requests (poisson); sessions are paced. Its stages go from two fifths
of the predicted maximum to a little above it, and the last stage is three times the maximum: so one run
compares the latency of admitted requests under overload with that at the knee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slipway_loadtests.capacity.arrivals import poisson
from slipway_loadtests.capacity.fleet import Fleet
from slipway_loadtests.capacity.plan import Service, rates_of, stream_latencies_s, streams_carried
from slipway_loadtests.capacity.simulation import simulate
from slipway_loadtests.load.figures import Figures
from slipway_loadtests.load.plan import Plan, Stage
from slipway_loadtests.load.slo import Objective
from slipway_loadtests.load.summary import KNEE_SHARE, ModelSummary, Staged
from slipway_loadtests.load.visits import Use
from slipway_serving.protocol.errors import Unrecoverable

OVERLOAD = 3.0
"""Level of the last stage, as a multiple of the predicted maximum."""
_SHARES = (0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, OVERLOAD)
_DRAWS = 20
_HEADS = ("there: p50, p95, p99", "good answers/s", "rejected, failed")

RunPlan = Callable[[str, Plan], ModelSummary]
"""Function that runs a plan of one model under a name and returns the summary."""


@dataclass(frozen=True)
class Saturation:
    """Saturation point of one model.

    Attributes:
        model: Name of the model.
        unit: Unit of levels: "requests/s" or "sessions".
        service: Service time and rates of one request or turn, from the closed run; input of the capacity
            model.
        expected: Most that one replica carries according to the capacity model: requests per second, or
            sessions.
        expected_p95_s: The capacity model's 95th percentile of latency at the knee's level; None without a
            knee.
        closed: Figures of the closed run.
        stages: Figures of the second run; the last stage has three times the predicted maximum.
        knee: Highest stage in which 90 % of the due requests were answered; for sessions, in which 90 % of
            the turns kept their objective (by default, before the next turn is due). None if there is none.
    """

    model: str
    unit: str
    service: Service
    expected: float
    expected_p95_s: float | None
    closed: tuple[Staged, ...]
    stages: tuple[Staged, ...]
    knee: Staged | None

    @property
    def slower(self) -> float | None:
        """95th percentile of latency in the last stage ÷ that at the knee; None without answers or a knee."""
        if self.knee is None or not self.stages[-1].figures.answered:
            return None
        p95_s = [each.figures.measures["latency_s"].p95 for each in (self.stages[-1], self.knee)]
        return p95_s[0] / p95_s[1]


def saturate(use: Use, plan: Plan, most_users: int, stage_s: float, run: RunPlan) -> Saturation:
    """Find how much of one model's use a server carries.

    Args:
        use: Use of the model.
        plan: Settings of the runs: the server's address, fields, objectives, seed. Its load is not used.
        most_users: Largest number of users in the closed run, 1 or more.
        stage_s: Length of each stage, in seconds.
        run: Function that sends the load.

    Raises:
        Unrecoverable: The only user of the first stage did not get all of its answers.
    """
    users = [2**power for power in range(most_users.bit_length())]
    plan = replace(plan, users=(use.user,), arrivals="closed")
    # The first stage connects and warms up.
    first = run("closed", replace(plan, paced=False, stages=_stages([1, *users], stage_s)))
    _, *closed = first.stages
    service = _service(use.model, closed, next(iter(first.errors), "no answer"))
    if use.turn_s is None:
        expected = service.per_s
        stages = _stages([expected * share for share in _SHARES], stage_s)
        plan = replace(plan, arrivals="poisson", stages=stages)
    else:
        expected = streams_carried(service, use.turn_s, KNEE_SHARE)
        stages = _stages(sorted({max(round(expected * share), 1) for share in _SHARES}), stage_s)
        # A user's session lasts to the end; a refused session is retried after the length of a turn.
        plan = replace(plan, stages=stages, session_s=stage_s * len(stages), think_s=use.turn_s)
        plan = replace(plan, slo={use.model: Objective(good={"latency_s": use.turn_s}), **plan.slo})
    name, unit = ("open", "requests/s") if use.turn_s is None else ("sessions", "sessions")
    found = run(name, plan).stages
    knee = _knee(found, good=use.turn_s is not None)
    p95_s = None if knee is None else _expected_p95_s(service, use.turn_s, knee.stage)
    return Saturation(use.model, unit, service, expected, p95_s, tuple(closed), found, knee)


def lines(found: Sequence[Saturation]) -> Iterator[str]:
    """Yield a table in Markdown, a row for each model."""
    heads = (
        "knee",
        *_HEADS,
        f"at {OVERLOAD:g} times the most: p50, p95, p99",
        *_HEADS[1:],
        "p95 ÷ knee's",
        "model's most, p95",
    )
    yield f"| model | {' | '.join(heads)} |"
    yield "|---" * (len(heads) + 1) + "|"
    for each in found:
        knee = "none" if each.knee is None else f"{each.knee.stage.level:.3g} {each.unit}"
        cells = [f"`{each.model}`", knee]
        for staged in (each.knee, each.stages[-1]):
            cells += ["-"] * 3 if staged is None else _cells(staged.figures)
        cells.append("-" if each.slower is None else f"{each.slower:.2g}")
        p95_s = "-" if each.expected_p95_s is None else f"{each.expected_p95_s:.3g} s"
        cells.append(f"{each.expected:.3g} {each.unit}, {p95_s}")
        yield f"| {' | '.join(cells)} |"


def _stages(levels: Sequence[float], seconds: float) -> tuple[Stage, ...]:
    return tuple(Stage(seconds, float(level)) for level in levels)


def _service(model: str, closed: Sequence[Staged], failure: str) -> Service:
    kept = [
        each
        for each in closed
        if each.figures.per_s and not (each.figures.rejected_share or each.figures.failed_share)
    ]
    if not kept or kept[0].stage.level != 1:
        raise Unrecoverable(
            f"saturate: {model} must answer all of its only user within a stage, got {failure};"
            " try more --seconds"
        )
    # Above the maximum throughput, requests only wait; a further slowdown would be a change in the machine.
    kept = kept[: 1 + int(np.argmax([each.figures.per_s for each in kept]))]
    alone_s = kept[0].figures.measures["latency_s"].mean
    users = [round(each.stage.level) for each in kept]
    return Service((alone_s,), rates_of(users, [each.figures.per_s for each in kept]))


def _knee(stages: Sequence[Staged], *, good: bool) -> Staged | None:
    """Return the highest stage whose answers, or good answers, are 90 % of the requests due in it."""

    def carried(figures: Figures) -> bool:
        per_s = figures.goodput_per_s if good else figures.per_s
        return figures.sent > 0 and per_s >= KNEE_SHARE * figures.sent / figures.seconds

    return max(
        (each for each in stages if carried(each.figures)), key=lambda each: each.stage.level, default=None
    )


def _expected_p95_s(service: Service, turn_s: float | None, stage: Stage) -> float:
    """Return the capacity model's 95th percentile of latency in a stage, in seconds, as a median of draws."""
    if turn_s is not None:
        return float(np.percentile(stream_latencies_s(service, round(stage.level), turn_s), 95))
    # Simulate as many requests as the stage has: at the maximum rate, the queue grows with the run's length.
    fleet, count = Fleet(rates=service.rates), max(round(stage.level * stage.seconds), 1)
    draws = (poisson(stage.level, count, service.alone_s, seed) for seed in range(_DRAWS))
    return float(np.median([np.percentile(simulate(fleet, draw).latencies_s(), 95) for draw in draws]))


def _cells(figures: Figures) -> list[str]:
    latency = figures.measures.get("latency_s")
    spread = "-" if latency is None else f"{latency.p50:.3g}, {latency.p95:.3g}, {latency.p99:.3g} s"
    shares = f"{figures.rejected_share:.0%}, {figures.failed_share:.0%}"
    return [spread, f"{figures.goodput_per_s:.3g}", shares]
