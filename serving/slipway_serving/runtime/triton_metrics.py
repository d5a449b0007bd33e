"""Publication of the metrics of programs beside Triton's own `nv_` metrics.

A thread of the model's stub reads the recorder once a second and publishes the changes. So publication adds
no time to a request, and gauges also fall while no requests come. All instances of a model update the same
series.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

from slipway_serving.runtime.metrics import (
    HEARTBEATS,
    REQUESTS_RUNNING,
    RESTARTS,
    Metric,
    MetricUpdate,
    Recorder,
)
from slipway_serving.system.process_state import ProcessState

_INTERVAL_S = 1.0


class Publisher:
    """Thread that publishes the metrics of one model instance until it is closed.

    Args:
        pb_utils: Module of Triton's Python backend.
        model: Value of the label ``model``.
        recorder: Recorder of the instance's program.
        interval_s: Time between two reads of the recorder, in seconds.
    """

    def __init__(
        self, pb_utils: Any, model: str, recorder: Recorder, interval_s: float = _INTERVAL_S
    ) -> None:
        self._kinds, self._model = pb_utils.MetricFamily, model
        self._recorder, self._interval_s = recorder, interval_s
        self._families: dict[Metric, Any] = {}
        self._series: dict[tuple[Metric, str], Any] = {}
        self._closed = threading.Event()
        self._publish()
        self._thread = threading.Thread(target=self._run, name=f"{model}-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and publish the rest; the gauges of a model that holds nothing then become 0."""
        self._closed.set()
        self._thread.join()
        self._publish()

    def _run(self) -> None:
        last_beat_s = time.monotonic()
        while not self._closed.wait(self._interval_s):
            now_s = time.monotonic()
            self._recorder.count(HEARTBEATS, now_s - last_beat_s)
            last_beat_s = now_s
            self._publish()

    def _publish(self) -> None:
        for update in self._recorder.updates():
            self._apply(update)

    def _apply(self, update: MetricUpdate) -> None:
        """Publish the update of a metric."""
        key = (update.metric, update.value)
        if key not in self._series:
            self._series[key] = self._create_series(*key)
        series = self._series[key]
        for amount in update.amounts:
            match update.metric.kind:
                case "counter" if amount:
                    series.increment(amount)
                case "gauge":
                    series.set(amount)
                case "histogram":
                    series.observe(amount)

    def _create_series(self, metric: Metric, value: str) -> Any:
        """Return a new series with the value 0."""
        if metric not in self._families:
            self._families[metric] = self._kinds(
                name=metric.name,
                description=metric.description,
                kind=getattr(self._kinds, metric.kind.upper()),
            )
            _never_free(self._families[metric])
        labels = {"model": self._model} | ({metric.label: value} if metric.label else {})
        bounds = {"buckets": list(metric.buckets)} if metric.buckets else {}
        series = self._families[metric].Metric(labels=labels, **bounds)
        _never_free(series)
        return series


class RunningRequestsGauge:
    """Gauge of the requests that all instances of a model work on; a server is stopped when it is 0.

    It is updated at once, not by the thread of :class:`Publisher`. A process that dies within a request
    leaves the request counted; the next process of the model corrects the count.

    Args:
        pb_utils: Module of Triton's Python backend.
        model: Value of the label ``model``.
    """

    def __init__(self, pb_utils: Any, model: str) -> None:
        self._series = _gauge(pb_utils, REQUESTS_RUNNING, model)

    def add(self, update: int) -> None:
        """Add the number of requests that began; a negative number counts requests that ended."""
        self._series.increment(update)


def publish_restarts(pb_utils: Any, model: str, process_state: ProcessState) -> None:
    """Publish how often a model and its server were restarted; each instance publishes the same numbers."""
    for metric, count in zip(RESTARTS, process_state.restart_counts(), strict=True):
        _gauge(pb_utils, metric, model).set(count)


def _gauge(pb_utils: Any, metric: Metric, model: str) -> Any:
    """Return the series of a gauge without a further label; it lives as long as the process."""
    kinds = pb_utils.MetricFamily
    family = kinds(name=metric.name, description=metric.description, kind=kinds.GAUGE)
    series = family.Metric(labels={"model": model})
    _never_free(family)
    _never_free(series)
    return series


def _never_free(value: Any) -> None:
    """Prevent an object from ever being freed, even when the interpreter ends.

    Triton 2.51 counts the users of a series per family object. When the objects of one instance are freed,
    the series is freed although other instances use it, including those of a model that is being reloaded. We
    have seen counters disappear and loads that never end.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
