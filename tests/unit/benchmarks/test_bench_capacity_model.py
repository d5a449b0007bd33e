"""The prediction of a server that is itself a simulation, and what the benchmark asks the capacity model."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway_benchmarks.capacity.benchmark import Round, compare
from slipway_benchmarks.capacity.demands import (
    FRAMEPACK,
    MATRIX_GAME,
    WAN_T2V,
    exponential,
    wakeword_demand,
    world_demand,
)
from slipway_benchmarks.capacity.measurements import (
    Delay,
    MeasurementWindow,
    Observed,
    Subject,
    delay_of,
    predict,
    read_trace,
    service_of,
)
from slipway_benchmarks.capacity.scaling import Traffic, scale_long_jobs, session_bound
from slipway_cli import root
from slipway_loadtests.capacity.arrivals import poisson
from slipway_loadtests.capacity.fleet import Fleet
from slipway_loadtests.capacity.plan import Demand, Service, replicas_for
from slipway_loadtests.capacity.simulation import simulate
from slipway_serving.protocol.errors import Unrecoverable


def test_measured_family_is_a_stream_with_its_rates() -> None:
    demand = wakeword_demand(Service((0.01, 0.03), (1.0, 0.75)))
    assert demand.streamed
    assert demand.load(100) == pytest.approx(100 * 0.02 / 0.5 / 1.5)


def test_worlds_share_a_replica_while_their_blocks_are_in_time() -> None:
    demand = world_demand(Service((0.1, 0.12), (1.0,)), 0.48)
    # A block takes 0.11 s of every 0.48 s on the mean: four worlds to a replica.
    assert [replicas_for(demand, users).replicas for users in (1, 4, 5, 40)] == [1, 1, 2, 10]


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
    seen = read_trace(path, "video", MeasurementWindow(100, 5000, 0.0))
    assert seen.at_s == pytest.approx((0.0, 1e-6))
    assert seen.queue_s == pytest.approx((2e-8, 2e-8))
    assert seen.work_s == pytest.approx((3e-8, 3e-8))


def test_trace_without_the_models_requests_is_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(traced(1, "decoder", at_ns=1000)))
    with pytest.raises(Unrecoverable, match=r"trace\.json must hold requests to video, got none"):
        read_trace(path, "video", MeasurementWindow(0, 5000, 0.0))


def test_ratio_is_the_models_delay_over_the_servers_in_the_same_round() -> None:
    async def never(client: Any, number: int) -> None: ...

    rounds = [
        Round(1.0, (1.0,), 0.0, measured=Delay(2.0, 4.0), predicted=Delay(1.0, 5.0)),
        Round(1.0, (1.0,), 0.0, measured=Delay(1.0, 1.0), predicted=Delay(1.0, 1.0)),
    ]
    checked = compare(Subject("model", "a request", never, (1,)), rounds)
    assert checked.mean_ratio.values == (0.5, 1.0)
    assert checked.p95_ratio.values == (1.25, 1.0)


def test_bench_without_rounds_asks_the_model_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_benchmarks.capacity.benchmark.SESSION_FLEETS", ((2, 1), (2, 2)))
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
