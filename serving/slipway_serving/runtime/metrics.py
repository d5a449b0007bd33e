"""Metrics that programs record while they serve, independent of Triton.

A program gets a :class:`Recorder` with its settings and records plain numbers for the metrics below. In
Triton, a thread publishes them among the server's own metrics
(:mod:`slipway_serving.runtime.triton_metrics`). In process, :meth:`Recorder.updates` returns them. Every
label has a closed set of values that is declared here, so a caller's text can never become a label value.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from slipway_serving.protocol.errors import CODES, Unrecoverable

OK = "OK"
"""Value of the label `code` for a request that was answered."""
REFUSED = "REFUSED"
"""Value of the label `code` for a request that a server refused because it was shutting down."""


@dataclass(frozen=True)
class Metric:
    """Declaration of a metric; every metric also has the label ``model``, the served model's name.

    Attributes:
        name: Prometheus name, unit included.
        kind: Kind of metric. A "counter" only grows, a "gauge" has a current value, a "histogram" counts
            observations by size.
        description: Description in one sentence.
        label: Name of a further label; "" without one.
        values: All values of the further label.
        buckets: Upper bounds of a histogram's buckets, ascending.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    buckets: tuple[float, ...] = ()


REQUESTS = Metric(
    "slipway_requests_total",
    "counter",
    "Requests that Python models ended, by result: OK, the error's code, or REFUSED during shutdown.",
    label="code",
    values=(OK, *CODES, REFUSED),
)
REQUESTS_RUNNING = Metric(
    "slipway_requests_running",
    "gauge",
    "Requests in the instances of pipelines: those being worked on, and those that wait there.",
)
REQUESTS_WAITING = Metric(
    "slipway_requests_waiting",
    "gauge",
    "Requests that the instances of pipelines hold without working on them.",
)
HEARTBEATS = Metric(
    "slipway_heartbeats_total",
    "counter",
    "Seconds for which processes of Python models lived; the growth per second is the number of processes.",
)
INSTANCES = Metric("slipway_instances", "gauge", "Number of processes that a Python model should have.")
FRAMES = Metric("slipway_frames_total", "counter", "Video frames that were decoded.")
# The buckets range from the milliseconds of the tiny checkpoint to the step of a 14B denoiser at 720p.
DENOISE_STEP = Metric(
    "slipway_denoise_step_seconds",
    "histogram",
    "Seconds of one denoising step.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0),
)
# The buckets range from the milliseconds of the tiny checkpoint to ten times the playback time of a block at
# 25 frames a second.
_BLOCK_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
BLOCK = Metric(
    "slipway_block_seconds",
    "histogram",
    "Seconds of each part of generating a block of a world's frames.",
    label="part",
    values=("picture", "denoise", "decode", "commit"),
    buckets=_BLOCK_BUCKETS,
)
FIRST_FRAME = Metric(
    "slipway_first_frame_seconds",
    "histogram",
    "Seconds from a world's first turn to its first frame.",
    buckets=_BLOCK_BUCKETS,
)
BLOCKS_LATE = Metric(
    "slipway_blocks_late_total",
    "counter",
    "Blocks whose generation took longer than the playback of their frames.",
)
REQUESTS_STOPPED = Metric(
    "slipway_requests_stopped_total",
    "counter",
    "Videos that stopped after a step and sent their state, by reason: a given step, a shutdown, the caller.",
    label="reason",
    values=("step", "shutdown", "caller"),
)
REQUESTS_CONTINUED = Metric(
    "slipway_requests_continued_total", "counter", "Videos that continued from a state."
)
REQUESTS_MOVED = Metric(
    "slipway_requests_moved_total",
    "counter",
    "Videos that continued from a state that the shutdown of a server made.",
)
REQUESTS_SET_ASIDE = Metric(
    "slipway_requests_set_aside_total",
    "counter",
    "Times that a video was set aside for a more urgent request.",
)
STEPS_REPEATED = Metric(
    "slipway_steps_repeated_total",
    "counter",
    "Denoising steps that are done twice, since a video continued from a state before them.",
)
SESSIONS_OPEN = Metric("slipway_sessions_open", "gauge", "Open sessions of a stateful model.")
SESSIONS_LIMIT = Metric(
    "slipway_sessions_limit", "gauge", "Largest number of open sessions of a stateful model."
)
SHUTTING_DOWN = Metric(
    "slipway_shutting_down",
    "gauge",
    "Whether the model refuses new requests since its server shuts down: above 0 if so.",
)

WORLDS = (BLOCK, FIRST_FRAME, BLOCKS_LATE)
CONTINUATIONS = (
    REQUESTS_STOPPED,
    REQUESTS_CONTINUED,
    REQUESTS_MOVED,
    REQUESTS_SET_ASIDE,
    STEPS_REPEATED,
)
"""Counters of pipelines whose videos can stop and continue."""
MODEL_RESTARTS = Metric(
    "slipway_model_restarts",
    "gauge",
    "Restarts of the model because one of its processes died, since the server's first start.",
)
SERVER_RESTARTS = Metric(
    "slipway_server_restarts",
    "gauge",
    "Restarts of the server, and the model with it, because it died.",
)

RESTARTS = (MODEL_RESTARTS, SERVER_RESTARTS)
METRICS = (
    REQUESTS,
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    HEARTBEATS,
    INSTANCES,
    FRAMES,
    DENOISE_STEP,
    SESSIONS_OPEN,
    SESSIONS_LIMIT,
    SHUTTING_DOWN,
    *WORLDS,
    *CONTINUATIONS,
    *RESTARTS,
)


@dataclass(frozen=True)
class MetricUpdate:
    """Update of a metric since the last read.

    Attributes:
        metric: Metric that is updated.
        value: Value of its further label; "" without one.
        amounts: Numbers of the update: the growth of a counter, the value of a gauge, or each observation of
            a histogram.
    """

    metric: Metric
    value: str
    amounts: tuple[float, ...]


class Recorder:
    """Thread-safe recorder of the metrics of one model instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recorded: dict[tuple[Metric, str], list[float]] = {}
        self._gauges: dict[Metric, Callable[[], float]] = {}

    def declare(self, *metrics: Metric) -> None:
        """Declare counters and histograms, so that they are published with 0 before anything happens."""
        with self._lock:
            for metric in metrics:
                for value in metric.values:
                    self._recorded.setdefault((metric, value), _empty_amounts(metric))

    def count(self, metric: Metric, amount: float = 1.0, value: str = "") -> None:
        """Increase a counter.

        Raises:
            Unrecoverable: The further label cannot have this value.
        """
        self._record(metric, amount, value)

    def observe(self, metric: Metric, amount: float, value: str = "") -> None:
        """Add an observation to a histogram.

        Raises:
            Unrecoverable: The further label cannot have this value.
        """
        self._record(metric, amount, value)

    def register_gauge(self, metric: Metric, read: Callable[[], float]) -> None:
        """Register a function that gives a gauge's value whenever the metrics are read."""
        with self._lock:
            self._gauges[metric] = read

    def updates(self) -> Iterator[MetricUpdate]:
        """Yield the numbers recorded since the last call, and the current values of the gauges.

        The amounts of a counter are added up; an unchanged counter yields 0.
        """
        with self._lock:
            recorded = self._recorded
            self._recorded = {(metric, value): _empty_amounts(metric) for metric, value in recorded}
            gauges = dict(self._gauges)
        for (metric, value), amounts in recorded.items():
            yield MetricUpdate(metric, value, tuple(amounts))
        for metric, read in gauges.items():
            yield MetricUpdate(metric, "", (float(read()),))

    def _record(self, metric: Metric, amount: float, value: str) -> None:
        """Add an amount to a counter or histogram."""
        if value not in metric.values:
            raise Unrecoverable(
                f"metric {metric.name}: {metric.label or 'a further label'} must be one of "
                f"{', '.join(metric.values)}, got {value!r}"
            )
        with self._lock:
            amounts = self._recorded.setdefault((metric, value), _empty_amounts(metric))
            if metric.kind == "counter":
                amounts[0] += amount
            else:
                amounts.append(amount)


def _empty_amounts(metric: Metric) -> list[float]:
    """Return the amounts of a counter or histogram without any record."""
    return [0.0] if metric.kind == "counter" else []
