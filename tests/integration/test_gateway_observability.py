"""What a running gateway tells Prometheus: jobs that wait and run, how they ended, and who asked.

One gateway runs one job at a time; the first one waits at a gate while Prometheus looks, with the files of
observability/, at what waits behind it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from gate import Gate
from gateway_fixtures import Gateway, running_gateway
from observability_fixtures import Prometheus, assert_data, queries, recorded
from prometheus_client.parser import text_string_to_metric_families
from server_fixtures import wait_until

from slipway_gateway.metrics import GatewayMetrics
from slipway_serving.triton.server import Server

SMALL = {"frames": 5, "size": "32x32", "steps": 3}
# Nothing fails here, and webhooks, sockets and continued jobs have tests of their own.
ELSEWHERE = (
    *("failure_ratio", "error_ratio"),
    *("webhooks_total", "jobs_continued_total", "sessions_", "contents_bytes"),
)
# Of jobs that wait or run, which are over when the other queries are asked.
PASSING = ("jobs_waiting", "jobs_running", "oldest_job_seconds")


def of_the_gateway(expression: str) -> bool:
    return "gateway" in expression and not any(name in expression for name in ELSEWHERE)


@dataclass(frozen=True)
class Watched:
    """A gateway that made videos, and the Prometheus that saw it."""

    gateway: Gateway
    prometheus: Prometheus
    waiting: dict[str, float]


@pytest.fixture(scope="module")
def watched(gated_server: tuple[Server, Gate], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    if shutil.which("prometheus") is None:
        assert not os.environ.get("CI"), "prometheus must be installed in CI; try apt-get install prometheus"
        pytest.skip("prometheus is not installed; Debian's package of this name has it")
    server, gate = gated_server
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway([server.grpc_url], folder, "--concurrency", "1") as gateway:
        triton = server.metrics_url.removeprefix("http://").removesuffix("/metrics")
        prometheus = Prometheus(folder, triton, gateway.url.removeprefix("http://"))
        try:
            yield Watched(gateway, prometheus, seen_while_jobs_wait(gateway, prometheus, gate))
        finally:
            gate.open()
            prometheus.process.terminate()
            prometheus.process.wait(30)


def seen_while_jobs_wait(gateway: Gateway, prometheus: Prometheus, gate: Gate) -> dict[str, float]:
    """Make one video and let three wait; return what the rules recorded before all of them were made."""
    wait_until(lambda: prometheus.query('up{job="slipway-gateway"} == 1') != [], "a scrape of the gateway")
    jobs = [gateway.create(seed=seed, **SMALL)["id"] for seed in range(4)]
    wait_until(lambda: prometheus.query("slipway:gateway_jobs_running == 1") != [], "a job that runs")
    wait_until(lambda: prometheus.query("slipway:gateway_jobs_waiting == 3") != [], "the jobs that wait")
    wait_until(lambda: prometheus.query("slipway:gateway_oldest_job_seconds > 1") != [], "an older job")
    seen = {name: prometheus.query(f"slipway:gateway_{name}")[0][1] for name in PASSING}
    gate.open()
    for job in jobs:
        assert gateway.until(job)["status"] == "completed"
    # Once more, now that the counters are there: what grows is what a rate shows.
    for seed in range(4, 7):
        done = gateway.until(gateway.create(seed=seed, **SMALL)["id"])
        counted = f'sum(slipway_gateway_jobs_total{{outcome="completed"}}) == {seed + 1}'
        wait_until(lambda counted=counted: prometheus.query(counted) != [], f"{done['id']} is counted")
    return seen


def test_jobs_that_wait_and_run_are_seen_while_they_do(watched: Watched) -> None:
    assert (watched.waiting["jobs_waiting"], watched.waiting["jobs_running"]) == (3, 1)
    assert watched.waiting["oldest_job_seconds"] > 1
    assert watched.prometheus.query("slipway:gateway_replicas_ready")[0][1] == 1


def test_page_has_the_declared_metrics_and_no_others(watched: Watched) -> None:
    declared = {family.name for family in text_string_to_metric_families(GatewayMetrics().page().decode())}
    page = watched.gateway.http.get("/metrics").text
    found = {family.name for family in text_string_to_metric_families(page)}
    # Beside each counter and histogram, the library gives the time at which it began.
    assert {name for name in found if not name.endswith("_created")} == declared
    labels = {
        name
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        for name in sample.labels
    }
    assert labels <= {"model", "key", "outcome", "state", "route", "status", "le"}


@pytest.mark.parametrize("rule", filter(of_the_gateway, recorded()))
def test_recording_rule_returns_data(watched: Watched, rule: str) -> None:
    over = any(name in rule for name in PASSING)
    assert_data(watched.prometheus, f"max_over_time({rule}[5m])" if over else rule)


@pytest.mark.parametrize("query", filter(of_the_gateway, queries()))
def test_dashboard_query_returns_data(watched: Watched, query: str) -> None:
    asked = query.replace("$__rate_interval", "2m").replace("$model", ".*")
    over = any(name in query for name in PASSING)
    assert_data(watched.prometheus, f"max_over_time(({asked})[5m:1s])" if over else asked)


def test_no_alert_fires_on_a_sound_gateway(watched: Watched) -> None:
    assert watched.prometheus.query('ALERTS{alertstate="firing"}') == []
