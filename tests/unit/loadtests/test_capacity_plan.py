"""What the capacity model answers, and the prediction of a server that is itself a simulation."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway_cli import root
from slipway_loadtests.capacity.arrivals import Arrival, poisson
from slipway_loadtests.capacity.bench import Round, compare
from slipway_loadtests.capacity.fleet import Fleet
from slipway_loadtests.capacity.load import (
    Delay,
    Observed,
    Subject,
    Window,
    delay_of,
    predict,
    read_trace,
    service_of,
)
from slipway_loadtests.capacity.plan import (
    FRAMEPACK,
    MATRIX_GAME,
    WAN_T2V,
    Demand,
    Service,
    exponential,
    rates_of,
    replicas_for,
    streams_carried,
    wakeword_demand,
    world_demand,
)
from slipway_loadtests.capacity.scaling import Traffic, scale_long_jobs, session_bound
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


def test_measured_family_is_a_stream_with_its_rates() -> None:
    demand = wakeword_demand(Service((0.01, 0.03), (1.0, 0.75)))
    assert demand.streamed
    assert demand.load(100) == pytest.approx(100 * 0.02 / 0.5 / 1.5)


def test_worlds_share_a_replica_while_their_blocks_are_in_time() -> None:
    demand = world_demand(Service((0.1, 0.12), (1.0,)), 0.48)
    # A block takes 0.11 s of every 0.48 s on the mean: four worlds to a replica.
    assert [replicas_for(demand, users).replicas for users in (1, 4, 5, 40)] == [1, 1, 2, 10]


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


def test_exponential_lengths_have_their_mean_and_longest() -> None:
    assert np.mean(exponential(2.0, math.inf)) == pytest.approx(2.0, rel=0.01)
    assert max(exponential(120.0, 164.0)) == 164.0


@pytest.mark.parametrize("demand", [WAN_T2V, MATRIX_GAME, FRAMEPACK])
def test_family_that_was_not_measured_names_its_source(demand: Demand) -> None:
    assert demand.source.startswith("public: ")
    assert demand.replica


def test_draining_loses_no_job_and_a_short_grace_does() -> None:
    found = {way.name: way for way in scale_long_jobs(Traffic(waves=3))}
    assert len({way.jobs for way in found.values()}) == 1
    for name, way in found.items():
        assert (way.lost > 0) == (way.wasted_hours > 0) == name.endswith("grace 30 s")
    assert found["always 12"].held_hours > 1.5 * found["in flight, 300 s, drained"].held_hours
    assert found["waiting, 300 s, drained"].p95_s > 1.5 * found["in flight, 300 s, drained"].p95_s


def test_sessions_fill_a_fleet_as_erlang_says() -> None:
    # Erlang B: 1 % is refused by 4 places at a load of 0.869, by one place at 0.0101.
    assert session_bound(4, 1, "least").utilization == pytest.approx(0.99 * 0.869 / 4, rel=0.1)
    assert session_bound(2, 2, "least").utilization == pytest.approx(0.99 * 0.869 / 4, rel=0.1)
    assert session_bound(4, 1, "random").utilization == pytest.approx(0.01, rel=0.3)


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


def observed(rates: tuple[float, ...], spread: float) -> Observed:
    """What a load run would have seen of a server that is the model itself."""
    services_s = np.random.default_rng(1).gamma(1 / spread, spread, 50) * 0.1
    fleet = Fleet(rates=rates)
    run = simulate(fleet, poisson(0.7 * fleet.throughput / 0.1, 4000, services_s.tolist(), 2))
    return Observed(
        tuple(request.arrival.at_s for request in run.requests),
        tuple(run.waits_s().tolist()),
        tuple(request.finished_s - request.started_s for request in run.requests),
    )


@pytest.mark.parametrize("rates", [(1.0,), (1.0, 1.0), (1.0, 0.6), (1.0, 0.8, 1 / 1.5)])
@pytest.mark.parametrize("spread", [0.01, 0.1])
def test_services_and_rates_are_found_behind_the_times_at_work(
    rates: tuple[float, ...], spread: float
) -> None:
    service = service_of(observed(rates, spread), len(rates))
    assert service.rates == pytest.approx(rates, abs=0.03)
    assert service.mean_s == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("rates", [(1.0,), (1.0, 1.0), (1.0, 0.6)])
@pytest.mark.parametrize("spread", [0.01, 0.1])
def test_prediction_finds_the_queue_of_a_server_that_works_like_the_model(
    rates: tuple[float, ...], spread: float
) -> None:
    seen = observed(rates, spread)
    predicted, measured = predict(service_of(seen, len(rates)), seen), delay_of(seen.queue_s)
    assert measured.mean_s > 0
    assert predicted.mean_s == pytest.approx(measured.mean_s, rel=0.15)
    assert predicted.p95_s == pytest.approx(measured.p95_s, rel=0.15)


def test_prediction_is_off_when_the_server_works_like_another() -> None:
    seen = observed((1.0,), 0.1)
    assert predict(service_of(seen, 2), seen).mean_s < 0.5 * delay_of(seen.queue_s).mean_s
    slowed = observed((1.0, 0.6), 0.1)
    ignored = replace(service_of(slowed, 2), rates=(1.0, 1.0))
    assert predict(ignored, slowed).mean_s < 0.5 * delay_of(slowed.queue_s).mean_s


def traced(number: int, model: str, at_ns: int, **more: int) -> list[dict[str, Any]]:
    """A request as Triton traces it: 20 ns in the queue, 30 ns at work, each stamp in an entry of its own."""
    stamps = {"REQUEST_START": 0, "QUEUE_START": 1, "COMPUTE_START": 21, "COMPUTE_END": 51, "REQUEST_END": 60}
    entries = [
        {"id": number, "timestamps": [{"name": name, "ns": at_ns + ns}]} for name, ns in stamps.items()
    ]
    return [{"id": number, "model_name": model, "model_version": 1, **more}, *entries]


def test_trace_is_read_for_one_models_own_requests_within_the_window(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    entries = [
        *traced(1, "video", at_ns=50),  # before the window
        *traced(3, "video", at_ns=2000),
        *traced(2, "video", at_ns=1000),
        *traced(4, "video", at_ns=1500, parent_id=2),  # a call of another model's
        *traced(5, "decoder", at_ns=1600),
        *traced(6, "video", at_ns=9000),  # after it
    ]
    path.write_text(json.dumps(entries))
    seen = read_trace(path, "video", Window(100, 5000, 0.0))
    assert seen.at_s == pytest.approx((0.0, 1e-6))
    assert seen.queue_s == pytest.approx((2e-8, 2e-8))
    assert seen.work_s == pytest.approx((3e-8, 3e-8))


def test_trace_without_the_models_requests_is_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(traced(1, "decoder", at_ns=1000)))
    with pytest.raises(Unrecoverable, match=r"trace\.json must hold requests to video, got none"):
        read_trace(path, "video", Window(0, 5000, 0.0))


def test_ratio_is_the_models_delay_over_the_servers_in_the_same_round() -> None:
    async def never(client: Any, number: int) -> None: ...

    rounds = [
        Round(1.0, (1.0,), 0.0, measured=Delay(2.0, 4.0), predicted=Delay(1.0, 5.0)),
        Round(1.0, (1.0,), 0.0, measured=Delay(1.0, 1.0), predicted=Delay(1.0, 1.0)),
    ]
    checked = compare(Subject("model", "a request", never, (1,)), rounds)
    assert checked.mean_ratio.values == (0.5, 1.0)
    assert checked.p95_ratio.values == (1.25, 1.0)


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


def test_bench_without_rounds_asks_the_model_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_loadtests.capacity.bench.SESSION_FLEETS", ((2, 1), (2, 2)))
    flags = ["--rounds", "0", "--users", "10", "--quiet", "--output", str(tmp_path)]
    assert root.run(["bench", "capacity", *flags]) == 0
    report = json.loads((tmp_path / "capacity.json").read_text())
    assert report["checked"] == {}
    assert list(report["answers"]) == [WAN_T2V.name, MATRIX_GAME.name, FRAMEPACK.name]
    for answers in report["answers"].values():
        assert [answer["routing"] for answer in answers] == ["least", "random"]
        assert all(0 < answer["utilization"] < 1 for answer in answers)
    assert len(report["sessions"]) == 4
    assert (tmp_path / "capacity.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_same_seed_gives_the_same_answers() -> None:
    assert replicas_for(VIDEO, 50, "random", seed=3) == replicas_for(VIDEO, 50, "random", seed=3)
    assert VIDEO.arrivals(5, 3)[0] != VIDEO.arrivals(5, 4)[0]
    assert isinstance(VIDEO.arrivals(5, 3)[0], Arrival)
