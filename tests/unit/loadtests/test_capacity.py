"""The capacity model against closed formulas, and what its scaling, draining and routing do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from slipway_benchmarks.capacity.demands import exponential
from slipway_loadtests.capacity.arrivals import Arrival, poisson, streams, waves
from slipway_loadtests.capacity.fleet import Autoscaler, Fleet
from slipway_loadtests.capacity.simulation import simulate
from slipway_serving.protocol.errors import InvalidRequest

EXPONENTIAL = exponential(1.0, math.inf)
REQUESTS = 60_000
# Of a mean of waits, which hang together: with seeds 0 to 9 the worst is off by 7 %.
TOLERANCE = 0.10


def erlang_b(load: float, places: int) -> float:
    """Share that is refused by `places` without a queue (Erlang's recursion)."""
    refused = 1.0
    for taken in range(1, places + 1):
        refused = load * refused / (taken + load * refused)
    return refused


def erlang_c(load: float, servers: int) -> float:
    """Share that has to wait for one of `servers`."""
    refused = erlang_b(load, servers)
    return refused / (1 - load / servers * (1 - refused))


@pytest.mark.parametrize(("servers", "busy"), [(1, 0.7), (2, 0.7), (4, 0.8)])
def test_wait_equals_mmc_when_instances_do_not_feel_each_other(servers: int, busy: float) -> None:
    load = servers * busy
    run = simulate(Fleet(rates=(1.0,) * servers), poisson(load, REQUESTS, EXPONENTIAL, 1))
    expected_s = erlang_c(load, servers) / (servers - load)
    assert run.waits_s(1000).mean() == pytest.approx(expected_s, rel=TOLERANCE)
    assert (run.waits_s(1000) > 0).mean() == pytest.approx(erlang_c(load, servers), rel=TOLERANCE)
    assert run.utilization == pytest.approx(busy, rel=0.02)


@pytest.mark.parametrize("busy", [0.5, 0.8])
def test_wait_equals_md1_when_every_service_is_the_same(busy: float) -> None:
    run = simulate(Fleet(), poisson(busy, REQUESTS, [1.0], 1))
    assert run.waits_s(1000).mean() == pytest.approx(busy / (2 * (1 - busy)), rel=TOLERANCE)


@pytest.mark.parametrize("service_s", [EXPONENTIAL, (1.0,)])
def test_latency_is_that_of_processor_sharing_when_rates_share_one_processor(
    service_s: Sequence[float],
) -> None:
    shared = tuple(1 / count for count in range(1, 200))
    run = simulate(Fleet(rates=shared), poisson(0.6, REQUESTS, service_s, 1))
    # It depends on the mean of the service alone.
    assert run.latencies_s(1000).mean() == pytest.approx(1 / (1 - 0.6), rel=TOLERANCE)


@pytest.mark.parametrize(("places", "load"), [(4, 2.0), (16, 12.0)])
def test_refused_share_is_erlang_b_when_sessions_find_any_free_place(places: int, load: float) -> None:
    fleet = Fleet(places // 2, (1.0, 1.0), sticky=True, queue_limit=0)
    run = simulate(fleet, poisson(load, REQUESTS, EXPONENTIAL, 1))
    assert run.refused_share(100) == pytest.approx(erlang_b(load, places), rel=TOLERANCE)


def test_refused_share_is_that_of_one_gpu_when_sessions_are_placed_by_hash() -> None:
    fleet = Fleet(16, (1.0, 1.0), "random", sticky=True, queue_limit=0)
    run = simulate(fleet, poisson(16 * 0.5, REQUESTS, EXPONENTIAL, 1))
    assert run.refused_share(100) == pytest.approx(erlang_b(0.5, 2), rel=TOLERANCE)


def test_random_routing_makes_every_replica_an_mm1() -> None:
    run = simulate(Fleet(4, routing="random"), poisson(4 * 0.6, REQUESTS, EXPONENTIAL, 1))
    assert run.waits_s(1000).mean() == pytest.approx(0.6 / (1 - 0.6), rel=TOLERANCE)


def test_requests_are_answered_first_come_first_served() -> None:
    run = simulate(Fleet(), [Arrival(0, 3), Arrival(1, 1), Arrival(2, 1)])
    assert [request.finished_s for request in run.requests] == [3, 4, 5]
    assert run.waits_s().tolist() == [0, 2, 2]
    assert run.delays_s().tolist() == [0, 2, 2]


def test_two_at_work_slow_each_other_when_rates_say_so() -> None:
    # From 1 to 3 both go at half speed: the first is done at 3, the second has 1 left, alone.
    run = simulate(Fleet(rates=(1.0, 0.5)), [Arrival(0, 2), Arrival(1, 2)])
    assert [request.finished_s for request in run.requests] == [3, 4]
    assert [request.started_s for request in run.requests] == [0, 1]
    assert run.utilization == 1.0


def test_same_seed_gives_the_same_run_and_another_another() -> None:
    arrivals = poisson(3.0, 500, EXPONENTIAL, 3)
    fleet = Fleet(4, routing="random")
    first, again, other = (simulate(fleet, arrivals, seed).waits_s().tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_users_requests_meet_one_replica_when_sticky() -> None:
    # The other replica is free again when the first user comes back to the one that still works for it.
    arrivals = [Arrival(0, 5, user=1), Arrival(1, 0.5, user=2), Arrival(2, 1, user=1)]
    waits = {
        sticky: simulate(Fleet(2, sticky=sticky), arrivals).waits_s().tolist() for sticky in (True, False)
    }
    assert waits == {True: [0, 0, 3], False: [0, 0, 0]}


def long_jobs(grace_s: float) -> tuple[Fleet, list[Arrival]]:
    """Two jobs of 100 s, then nothing that waits: the autoscaler ends a replica that works."""
    autoscaler = Autoscaler(least=1, most=2, metric="pending", every_s=10, stabilization_s=20)
    return Fleet(2, grace_s=grace_s, autoscaler=autoscaler), [Arrival(0, 100), Arrival(0, 100)]


def test_scale_down_loses_work_when_grace_is_shorter_than_the_job() -> None:
    run = simulate(*long_jobs(grace_s=30))
    # Ended at 30 s with 30 s of grace: 60 s of work are lost, and begin anew behind the other job.
    assert (run.lost, run.wasted_s) == (1, 60)
    assert max(request.finished_s for request in run.requests) == 200
    assert sorted(request.lost for request in run.requests) == [0, 1]


def test_scale_down_loses_nothing_when_replicas_drain() -> None:
    run = simulate(*long_jobs(grace_s=100))
    assert (run.lost, run.wasted_s) == (0, 0)
    assert [request.finished_s for request in run.requests] == [100, 100]


def test_replica_is_held_until_its_last_session_ends_when_it_drains() -> None:
    # Of k sessions of exponential length the last ends after 1 + 1/2 + ... + 1/k mean lengths.
    autoscaler = Autoscaler(most=2, metric="pending", every_s=0.01, stabilization_s=0)
    fleet = Fleet(2, (1.0,) * 4, autoscaler=autoscaler)
    random = np.random.default_rng(0)
    ended_s = []
    for _ in range(200):
        run = simulate(fleet, [Arrival(0, length) for length in random.exponential(1.0, 8).tolist()])
        (last,) = (at_s for at_s, held in run.timeline[2:] if held == 1)
        ended_s.append(last)
    assert np.mean(ended_s) == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4, rel=TOLERANCE)


def test_replica_works_only_after_its_cold_start() -> None:
    autoscaler = Autoscaler(most=2, every_s=10)
    fleet = Fleet(1, start_s=25, autoscaler=autoscaler)
    run = simulate(fleet, [Arrival(0, 100), Arrival(1, 100), Arrival(36, 5)])
    # Ordered at the first look, 10 s, ready at 35 s: what was routed before stays where it is.
    assert [request.started_s for request in run.requests] == [0, 100, 36]
    assert run.timeline[:2] == [(0, 1), (10, 2)]


def test_replica_that_never_became_ready_is_ended_first() -> None:
    # Ordered at 10 s, no more wanted at 20 s: the old one goes on, though the other is the younger.
    autoscaler = Autoscaler(most=2, every_s=10, stabilization_s=0)
    jobs = [Arrival(0, 15), Arrival(0, 3), Arrival(30, 1)]
    run = simulate(Fleet(1, start_s=25, autoscaler=autoscaler), jobs)
    assert run.timeline == [(0, 1), (10, 2), (20, 1)]
    assert run.requests[2].started_s == 30


def test_autoscaler_follows_kubernetes_rule() -> None:
    autoscaler = Autoscaler(least=2, most=8, target=2.0)
    assert autoscaler.wanted(9, current=4) == 5
    assert autoscaler.wanted(8.7, current=4) == 4  # within the tolerance of a tenth
    assert autoscaler.wanted(100, current=4) == 8
    assert autoscaler.wanted(0, current=4) == 2


def test_scale_down_waits_when_a_look_within_the_window_asked_for_more() -> None:
    jobs = [Arrival(0, 5), Arrival(0, 5), Arrival(0, 5), Arrival(200, 5)]
    for stabilization_s, ended_s in ((0, 10), (60, 70)):
        autoscaler = Autoscaler(most=3, every_s=10, stabilization_s=stabilization_s)
        run = simulate(Fleet(3, autoscaler=autoscaler), jobs)
        assert run.timeline[3] == (ended_s, 2)


def test_pending_metric_is_blind_to_work_where_in_flight_is_not() -> None:
    jobs = [Arrival(0, 100), Arrival(0, 100)]
    held = {}
    for metric in ("pending", "in_flight"):
        autoscaler = Autoscaler(most=2, metric=metric, every_s=10, stabilization_s=0)
        held[metric] = simulate(Fleet(2, grace_s=0, autoscaler=autoscaler), jobs).lost
    assert held == {"pending": 1, "in_flight": 0}


def test_sticky_user_moves_and_is_counted_when_its_replica_ends() -> None:
    autoscaler = Autoscaler(least=1, most=2, every_s=10, stabilization_s=0)
    arrivals = [Arrival(at_s, 1, user) for at_s in (0, 20) for user in (1, 2)]
    run = simulate(Fleet(2, sticky=True, autoscaler=autoscaler), arrivals)
    assert run.moved == 1


def test_poisson_has_its_rate_and_its_services() -> None:
    arrivals = poisson(2.0, 20_000, [1.0, 3.0], 0)
    gaps_s = np.diff([arrival.at_s for arrival in arrivals])
    assert gaps_s.mean() == pytest.approx(0.5, rel=0.03)
    assert gaps_s.std() == pytest.approx(0.5, rel=0.03)
    assert {arrival.service_s for arrival in arrivals} == {1.0, 3.0}


def test_waves_are_high_then_low() -> None:
    arrivals = waves(10.0, 1.0, 100.0, 2, [1.0], 0)
    counts = np.histogram([arrival.at_s for arrival in arrivals], bins=[0, 100, 200, 300, 400])[0]
    assert counts == pytest.approx([1000, 100, 1000, 100], rel=0.3)
    assert [arrival.at_s for arrival in arrivals] == sorted(arrival.at_s for arrival in arrivals)


def test_every_stream_sends_once_in_a_period() -> None:
    arrivals = streams(3, 0.5, 4, [0.01], 0)
    assert len(arrivals) == 12
    for user in range(3):
        gaps_s = np.diff([arrival.at_s for arrival in arrivals if arrival.user == user])
        assert gaps_s == pytest.approx([0.5] * 3)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"replicas": 0}, "replicas must be 1 or more, got 0"),
        ({"rates": ()}, "rates must be one or more"),
        ({"rates": (1.0, 0.0)}, "rates must be one or more, each above 0"),
        ({"routing": "best"}, "routing must be one of least, random, got 'best'"),
        ({"queue_limit": -1}, "queue_limit must be 0 or more, got -1"),
        ({"start_s": math.nan}, "start_s must be 0 or more, got nan"),
        ({"grace_s": -1.0, "replicas": -2}, "replicas must be 1 or more, got -2 | grace_s must be 0 or more"),
    ],
)
def test_fleet_is_refused_by_every_bad_field(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Fleet(**fields)  # type: ignore[arg-type]
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"least": 0}, "least must be 1 to most, got 0 and 10"),
        ({"most": 0}, "least must be 1 to most, got 1 and 0"),
        ({"metric": "cpu"}, "metric must be one of pending, in_flight"),
        ({"target": 0.0}, "target must be above 0"),
        ({"every_s": 0.0}, "every_s must be above 0"),
        ({"tolerance": -0.1}, "tolerance must be 0 or more"),
        ({"stabilization_s": -1.0}, "stabilization_s must be 0 or more"),
    ],
)
def test_autoscaler_is_refused_by_every_bad_field(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Autoscaler(**fields)  # type: ignore[arg-type]
    assert named in str(refused.value)


@pytest.mark.parametrize("arrivals", [[], [Arrival(2, 1), Arrival(1, 1)], [Arrival(-1, 1)]])
def test_arrivals_are_refused_when_none_or_out_of_order(arrivals: list[Arrival]) -> None:
    with pytest.raises(InvalidRequest, match="arrivals must be one or more in the order of time"):
        simulate(Fleet(), arrivals)


@pytest.mark.parametrize("service_s", [(), (1.0,)])
def test_arrivals_of_nothing_are_refused(service_s: Sequence[float]) -> None:
    with pytest.raises(InvalidRequest, match="must be above 0, got 0"):
        poisson(1.0 if not service_s else 0.0, 10, service_s)
