"""What the capacity model answers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipway_cli import root
from slipway_loadtests.capacity.arrivals import Arrival
from slipway_loadtests.capacity.fleet import Fleet
from slipway_loadtests.capacity.plan import Demand, Service, rates_of, replicas_for, streams_carried
from slipway_loadtests.capacity.simulation import simulate
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable

VIDEO = Demand("video", service_s=(60.0,), each_s=600.0, p95_s=60.0)


def p95_s(demand: Demand, users: int, replicas: int) -> float:
    arrivals = demand.arrivals(users, 0)
    run = simulate(Fleet(replicas, demand.rates, sticky=demand.streamed), arrivals)
    return float(np.percentile(run.delays_s(demand.settled_s(arrivals)), 95))


@pytest.mark.parametrize("users", [1, 30, 100])
def test_answer_keeps_the_promise_and_one_replica_less_does_not(users: int) -> None:
    answer = replicas_for(VIDEO, users)
    assert answer.p95_s == p95_s(VIDEO, users, answer.replicas) <= VIDEO.p95_s
    fewer = answer.replicas - 1
    assert fewer <= answer.load or p95_s(VIDEO, users, fewer) > VIDEO.p95_s
    assert answer.load == pytest.approx(users / 10)
    assert answer.utilization == answer.load / answer.replicas < 1


def test_many_users_fill_a_fleet_better_than_few() -> None:
    shares = [replicas_for(VIDEO, users).utilization for users in (10, 100, 400)]
    assert shares == sorted(shares)
    assert shares[0] < 0.6
    assert shares[-1] > 0.9


def test_random_routing_needs_more_replicas() -> None:
    assert replicas_for(VIDEO, 100, "random").replicas > 1.5 * replicas_for(VIDEO, 100).replicas


def test_streams_need_a_replica_for_each_group_that_fits() -> None:
    # A request takes 0.2 s of every 0.5 s: two streams fit on a replica, a third never.
    demand = Demand("stream", service_s=(0.2,), each_s=0.5, p95_s=0.25, streamed=True)
    assert [replicas_for(demand, users).replicas for users in (1, 2, 3, 20)] == [1, 1, 2, 10]
    assert replicas_for(demand, 20, "random").replicas > 10


def test_promise_out_of_reach_is_told_when_one_user_is_too_much_for_any_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipway_loadtests.capacity.plan._MOST_REPLICAS", 100)
    demand = Demand("stream", service_s=(1.0,), each_s=0.5, p95_s=0.25, streamed=True)
    with pytest.raises(Unrecoverable, match="p95_s must be in reach of 100 replicas, got 0.25 at 1 users"):
        replicas_for(demand, 1)


def test_demand_is_refused_by_every_bad_field() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Demand("bad", service_s=(1.0, -1.0), each_s=0.0, p95_s=math.nan)
    for field in ("service_s", "each_s", "p95_s"):
        assert f"{field} must be" in str(refused.value)
    with pytest.raises(InvalidRequest, match="users must be 1 or more, got 0"):
        replicas_for(VIDEO, 0)


def test_rates_explain_the_throughput() -> None:
    assert rates_of([1], [7.0]) == (1.0,)
    assert rates_of([1, 2], [10.0, 15.0]) == (1.0, 0.75)
    # Between 2 and 4 throughput grows evenly: 1.5, 1.75, 2 times that of one.
    assert rates_of([1, 2, 4], [10.0, 15.0, 20.0]) == pytest.approx((1.0, 0.75, 1.75 / 3, 0.5))
    assert rates_of([1, 2], [10.0, 21.0]) == (1.0, 1.0)  # faster together than alone is noise


@pytest.mark.parametrize(
    ("service_s", "rates", "carried"), [(0.09, (1.0,), 5), (0.09, (1.0, 1.0), 11), (0.6, (1.0,), 0)]
)
def test_replica_carries_as_many_streams_as_it_answers_in_time(
    service_s: float, rates: tuple[float, ...], carried: int
) -> None:
    assert streams_carried(Service((service_s,), rates), each_s=0.5, share=0.9) == carried


def test_capacity_command_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--service-s 60 --each-s 600 --p95-s 60 --users 10 --users 100"
    assert root.run(["capacity", *flags.split()]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"10 users: {replicas_for(VIDEO, 10).replicas} replicas, ")
    assert second.startswith(f"100 users: {replicas_for(VIDEO, 100).replicas} replicas, ")


def test_capacity_command_is_refused_when_a_time_is_not_above_zero(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = "--service-s 0 --each-s 600 --p95-s 60 --users 10"
    assert root.run(["capacity", *flags.split()]) == 2
    assert "service_s must be one or more times above 0" in capsys.readouterr().err


def test_capacity_command_takes_the_service_that_a_saturation_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = (1.0, 0.75)
    file = tmp_path / "video.json"
    file.write_text(json.dumps({"model": "video", "service": {"alone_s": [60.0], "rates": rates}}))
    flags = "--each-s 600 --p95-s 60 --users 100"
    assert root.run(["capacity", "--measured", str(file), *flags.split()]) == 0
    expected = replicas_for(replace(VIDEO, rates=rates), 100).replicas
    assert capsys.readouterr().out.startswith(f"100 users: {expected} replicas, ")
    assert expected < replicas_for(VIDEO, 100).replicas


@pytest.mark.parametrize(
    ("service", "refusal"),
    [
        ("", "got neither; try --service-s 2"),
        ("--service-s 2 --measured FILE", "got both"),
        ("--measured FILE --at-work 2", "got both"),
        ("--measured FILE", "must be MODEL.json of slipway saturate"),
        ("--measured nowhere.json", "must be MODEL.json of slipway saturate"),
    ],
)
def test_capacity_command_is_refused_without_one_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], service: str, refusal: str
) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    flags = f"{service.replace('FILE', str(file))} --each-s 600 --p95-s 60 --users 10"
    assert root.run(["capacity", *flags.split()]) == 2
    assert refusal in capsys.readouterr().err


def test_same_seed_gives_the_same_answers() -> None:
    assert replicas_for(VIDEO, 50, "random", seed=3) == replicas_for(VIDEO, 50, "random", seed=3)
    assert VIDEO.arrivals(5, 3)[0] != VIDEO.arrivals(5, 4)[0]
    assert isinstance(VIDEO.arrivals(5, 3)[0], Arrival)
