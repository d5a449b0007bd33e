"""The knee and what is beyond it, found of a server that is a simulation itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway_loadtests.capacity.arrivals import Arrival
from slipway_loadtests.capacity.fleet import Fleet
from slipway_loadtests.capacity.simulation import simulate
from slipway_loadtests.load import report
from slipway_loadtests.load.arrivals import moments_s
from slipway_loadtests.load.outcomes import Outcome
from slipway_loadtests.load.plan import Plan, Stage
from slipway_loadtests.load.saturation import OVERLOAD, RunPlan, lines, saturate
from slipway_loadtests.load.slo import Objective
from slipway_loadtests.load.summary import ModelSummary, summarize
from slipway_loadtests.load.visits import USES, Use
from slipway_serving.protocol.errors import Unrecoverable

STAGE_S = 20.0
VIDEO, LISTENING = (next(use for use in USES if use.model == name) for name in ("wan_t2v", "wakeword_stream"))


def sends(plan: Plan, turn_s: float) -> list[float]:
    """When the users of a plan send what they send whatever the server does, seconds from the beginning."""
    if plan.arrivals == "poisson":
        return list(moments_s(plan, 1.0, np.random.default_rng(1)))
    moments, begun_s = [], 0.0
    for stage in plan.stages:
        phases = np.arange(stage.level) / stage.level * turn_s
        moments += [begun_s + at for at in np.add.outer(np.arange(0, stage.seconds, turn_s), phases).ravel()]
        begun_s += stage.seconds
    return sorted(moments)


def closed(model: str, plan: Plan, service_s: float, places: int) -> list[Outcome]:
    """What users saw who ask again at once; more of them than places make the server slower."""
    found, begun_s = [], 0.0
    for stage in plan.stages:
        took_s = service_s * (1.5 * stage.level / places if stage.level > places else 1.0)
        for at_s in np.arange(0, stage.seconds - took_s / 2, took_s):
            for _ in range(round(stage.level)):
                found.append(answered(model, begun_s + at_s, took_s))
        begun_s += stage.seconds
    return found


def answered(model: str, due_s: float, took_s: float) -> Outcome:
    return Outcome(model, due_s, due_s + took_s, "answered", {"latency_s": (took_s,)})


def server(use: Use, service_s: float, places: int, limit: int | None = None) -> RunPlan:
    """A server of so many places, and so many that may wait."""

    def run(name: str, plan: Plan) -> ModelSummary:
        if not plan.paced:
            outcomes = closed(use.model, plan, service_s, places)
        else:
            arrivals = [Arrival(at_s, service_s) for at_s in sends(plan, use.turn_s or 0.0)]
            fleet = Fleet(rates=(1.0,) * places, queue_limit=limit)
            outcomes = [
                Outcome(use.model, each.arrival.at_s, each.arrival.at_s, "rejected", {}, "full")
                if each.refused
                else answered(use.model, each.arrival.at_s, each.finished_s - each.arrival.at_s)
                for each in simulate(fleet, arrivals).requests
            ]
        return summarize(plan, [use.model], 0.0, outcomes, []).models[use.model]

    return run


def test_knee_is_near_the_most_and_what_was_admitted_keeps_its_latency_when_the_queue_is_short() -> None:
    found = saturate(VIDEO, Plan(), 4, STAGE_S, server(VIDEO, 0.1, 2, limit=2))
    assert found.service.rates == pytest.approx((1.0, 1.0), rel=0.1)
    assert found.expected == pytest.approx(20, rel=0.05)
    assert found.knee is not None and 12 <= found.knee.stage.level <= 23
    beyond = found.stages[-1]
    assert beyond.stage.level == pytest.approx(OVERLOAD * found.expected)
    assert beyond.figures.rejected_share == pytest.approx(2 / 3, abs=0.1)
    # Two at work, two waiting: at most twice the service.
    assert beyond.figures.measures["latency_s"].most == pytest.approx(0.2, abs=0.01)
    assert found.slower is not None and found.slower < 2.5


def test_latency_grows_with_the_load_when_nothing_is_refused() -> None:
    found = saturate(VIDEO, Plan(), 4, STAGE_S, server(VIDEO, 0.1, 2))
    assert found.stages[-1].figures.rejected_share == 0
    assert found.slower is not None and found.slower > 10


def test_model_expects_a_latency_like_the_one_at_the_knee() -> None:
    found = saturate(VIDEO, Plan(), 2, 100.0, server(VIDEO, 0.1, 2))
    assert found.knee is not None and found.expected_p95_s is not None
    # At the most that is carried the queue of one draw of moments is several times that of another.
    assert 1 / 3 < found.expected_p95_s / found.knee.figures.measures["latency_s"].p95 < 3


def test_sessions_are_carried_as_long_as_turns_are_answered_before_the_next_is_due() -> None:
    found = saturate(LISTENING, Plan(), 4, STAGE_S, server(LISTENING, 0.03, 1))
    # A turn every 0.5 s: 16 and two thirds of 0.03 s fit into it.
    assert found.expected == 16
    assert found.knee is not None and found.knee.stage.level == 16
    assert [found.stages[-1].stage.level, found.stages[-1].figures.good_share] == [
        48,
        pytest.approx(0, abs=0.1),
    ]
    (row,) = list(lines([found]))[2:]
    assert row.startswith("| `wakeword_stream` | 16 sessions |") and "| 16 sessions, 0." in row


def test_promise_about_a_turn_is_the_users_own_where_there_is_one() -> None:
    plan = Plan(slo={LISTENING.model: Objective(good={"latency_s": 0.02})})
    found = saturate(LISTENING, plan, 1, STAGE_S, server(LISTENING, 0.03, 1))
    assert found.knee is None and found.slower is None
    assert "| none |" in list(lines([found]))[2]


def test_users_are_doubled_and_those_that_only_slow_the_server_are_left_out() -> None:
    seen: list[Plan] = []
    served = server(VIDEO, 0.1, 2)

    def run(name: str, plan: Plan) -> ModelSummary:
        seen.append(plan)
        return served(name, plan)

    found = saturate(VIDEO, Plan(seed=7), 9, 1.0, run)
    assert [stage.level for stage in seen[0].stages] == [1, 1, 2, 4, 8]
    assert not seen[0].paced and seen[1].paced and {plan.seed for plan in seen} == {7}
    assert found.service.rates == pytest.approx((1.0, 1.0), rel=0.1)


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ([], "got no answer"),
        ([answered("wan_t2v", 1.1, 0.1), Outcome("wan_t2v", 1.2, 1.3, "unavailable", {}, "gone")],
         "got unavailable: gone"),
    ],
)  # fmt: skip
def test_server_that_does_not_answer_its_only_user_is_named(outcomes: list[Outcome], said: str) -> None:
    def run(name: str, plan: Plan) -> ModelSummary:
        return summarize(plan, ["wan_t2v"], 0.0, outcomes, []).models["wan_t2v"]

    with pytest.raises(Unrecoverable, match=f"wan_t2v must answer all of its only user within .*{said}"):
        saturate(VIDEO, Plan(), 1, 1.0, run)


def test_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = Plan(stages=(Stage(1.0, 1.0), Stage(1.0, 2.0)))
    summary = summarize(plan, ["wan_t2v"], 0.0, [answered("wan_t2v", 0.1, 0.2)], ["no"])
    report.write_json(tmp_path / "report.json", plan, summary, None)
    assert report.read_json(tmp_path / "report.json") == summary


def test_saturation_is_written_with_the_machine(tmp_path: Path) -> None:
    found = saturate(VIDEO, Plan(), 2, STAGE_S, server(VIDEO, 0.1, 2, limit=2))
    report.write_saturation(tmp_path / "wan_t2v.json", found)
    data: dict[str, Any] = json.loads((tmp_path / "wan_t2v.json").read_text())
    assert data["machine"]["cores"] > 0
    assert (data["expected"], data["slower"]) == (found.expected, found.slower)
