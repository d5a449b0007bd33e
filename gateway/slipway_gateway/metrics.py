"""Metrics of a gateway for Prometheus.

The numbers of jobs come from the database, so every process reports the same ones; a query takes their
maximum. Everything else counts what this process did.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from slipway_gateway.jobs.job import Count, Job, Status
from slipway_gateway.replicas.replica import ReplicaState

_WAIT_BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600)
_RUN_BUCKETS = (0.5, 1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600)


class GatewayMetrics:
    """Metrics of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._waiting = self._gauge("jobs_waiting", "Jobs that wait for a server.", "model")
        self._running = self._gauge("jobs_running", "Jobs that a worker runs.", "model")
        self._oldest = self._gauge(
            "oldest_job_seconds", "Time that the oldest waiting job has waited.", "model"
        )
        self._ended = self._counter("jobs", "Jobs that ended, by outcome.", "model", "key", "outcome")
        self._continued = self._counter(
            "jobs_continued", "Runs that ended with a state to go on from.", "model"
        )
        self._wait = self._histogram("job_wait_seconds", "Time from creation to first run.", _WAIT_BUCKETS)
        self._run = self._histogram("job_run_seconds", "Time that servers worked on a job.", _RUN_BUCKETS)
        self._replicas = self._gauge("replicas", "Servers, by state.", "state")
        self._open = self._gauge("sessions_open", "Open sockets of sessions, by route.", "route")
        self._queued = self._gauge("sessions_waiting", "Sockets that wait for a session, by model.", "model")
        self._requests = self._counter("requests", "Answered requests.", "route", "status")
        self._contents = self._gauge("contents_bytes", "Size of all contents.")
        self._webhooks = self._counter("webhooks", "Attempts to deliver a webhook.", "outcome")

    def page(self) -> bytes:
        """Return the page of the metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def finished(self, job: Job) -> None:
        """Count a job that has ended."""
        self.ended(job.model, job.owner, job.status.value)
        if job.started_at is not None:
            self._wait.labels(job.model).observe(max(0.0, job.started_at - job.created_at))
            self._run.labels(job.model).observe(job.inference_time_s)

    def ended(self, model: str, key: str, outcome: str) -> None:
        """Count the end of a job by its outcome."""
        self._ended.labels(model, key, outcome).inc()

    def continued(self, model: str) -> None:
        """Count a run that ended with a state from which another run goes on."""
        self._continued.labels(model).inc()

    def request(self, route: str, status: int) -> None:
        """Count an answered request."""
        self._requests.labels(route, str(status)).inc()

    def webhook(self, outcome: str) -> None:
        """Count an attempt to deliver a webhook."""
        self._webhooks.labels(outcome).inc()

    def set_jobs(self, counts: Iterable[Count]) -> None:
        """Set the numbers of waiting and running jobs."""
        now_s = time.time()
        for gauge in (self._waiting, self._running, self._oldest):
            gauge.clear()
        for count in counts:
            if count.status is Status.QUEUED:
                self._waiting.labels(count.model).set(count.number)
                self._oldest.labels(count.model).set(max(0.0, now_s - count.oldest))
                self._running.labels(count.model)
            elif count.status is Status.IN_PROGRESS:
                self._running.labels(count.model).set(count.number)
                self._waiting.labels(count.model)

    def set_replicas(self, states: Iterable[ReplicaState]) -> None:
        """Set the number of servers in each state."""
        found = list(states)
        for state in ReplicaState:
            self._replicas.labels(state.value).set(found.count(state))

    def count_open(self, route: str, change: int) -> None:
        """Count a socket that opens, with a change of 1, or closes, with -1."""
        self._open.labels(route).inc(change)

    def set_waiting(self, waiting: Mapping[str, int]) -> None:
        """Set the number of sockets that wait for a session, by model."""
        self._queued.clear()
        for model, number in waiting.items():
            self._queued.labels(model).set(number)

    def set_contents(self, size_bytes: int) -> None:
        """Set the size of all contents."""
        self._contents.set(size_bytes)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"slipway_gateway_{name}", text, labels, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"slipway_gateway_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"slipway_gateway_{name}", text, ("model",), buckets=buckets, registry=self._registry
        )
