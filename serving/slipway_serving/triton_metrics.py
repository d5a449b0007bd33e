"""Brings what a program records (:mod:`slipway_serving.metrics`) into Triton's, beside its `nv_` ones.

A thread of the model's stub asks the recorder once a second and passes on what changed: nothing of it is on
the way of a request, and gauges fall also while no request comes. All instances of a model feed the same
series.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

from slipway_serving.footprints import Footprint
from slipway_serving.metrics import HEARTBEATS, REQUESTS_RUNNING, RESTARTS, Change, Metric, Recorder

_INTERVAL_S = 1.0


class Publisher:
    """Publishes one instance's numbers until it is closed.

    Args:
        pb_utils: the Python backend's module.
        model: value of the label ``model``.
        recorder: what the instance's program feeds.
        interval_s: seconds between two looks.
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
        """Publish the rest; a model that holds nothing any more has gauges of 0."""
        self._closed.set()
        self._thread.join()
        self._publish()

    def _run(self) -> None:
        looked_s = time.monotonic()
        while not self._closed.wait(self._interval_s):
            now_s = time.monotonic()
            self._recorder.count(HEARTBEATS, now_s - looked_s)
            looked_s = now_s
            self._publish()

    def _publish(self) -> None:
        for change in self._recorder.changes():
            self._tell(change)

    def _tell(self, change: Change) -> None:
        key = (change.metric, change.value)
        if key not in self._series:
            self._series[key] = self._new(*key)
        series = self._series[key]
        for amount in change.amounts:
            match change.metric.kind:
                case "counter" if amount:
                    series.increment(amount)
                case "gauge":
                    series.set(amount)
                case "histogram":
                    series.observe(amount)

    def _new(self, metric: Metric, value: str) -> Any:
        """Return a new series, at 0."""
        if metric not in self._families:
            self._families[metric] = self._kinds(
                name=metric.name,
                description=metric.description,
                kind=getattr(self._kinds, metric.kind.upper()),
            )
            _keep(self._families[metric])
        labels = {"model": self._model} | ({metric.label: value} if metric.label else {})
        bounds = {"buckets": list(metric.buckets)} if metric.buckets else {}
        series = self._families[metric].Metric(labels=labels, **bounds)
        _keep(series)
        return series


class Running:
    """How many requests all instances of a model work on, published at once: a server is stopped at 0.

    A process that dies in the middle of a request leaves it counted; the next one of the model takes it back.

    Args:
        pb_utils: the Python backend's module.
        model: value of the label ``model``.
    """

    def __init__(self, pb_utils: Any, model: str) -> None:
        self._series = _gauge(pb_utils, REQUESTS_RUNNING, model)

    def add(self, change: int) -> None:
        """Count requests that began, or, below 0, ended."""
        self._series.increment(change)


def tell_restarts(pb_utils: Any, model: str, footprint: Footprint) -> None:
    """Publish how often a model and its server were started anew; each instance tells the same."""
    for metric, count in zip(RESTARTS, footprint.restarts(), strict=True):
        _gauge(pb_utils, metric, model).set(count)


def _gauge(pb_utils: Any, metric: Metric, model: str) -> Any:
    """Return the series of a gauge without a further label, for as long as the process lives."""
    kinds = pb_utils.MetricFamily
    family = kinds(name=metric.name, description=metric.description, kind=kinds.GAUGE)
    series = family.Metric(labels={"model": model})
    _keep(family)
    _keep(series)
    return series


def _keep(thing: Any) -> None:
    """Never let go of an object, not even when the interpreter ends.

    Triton 2.51 counts the users of a series per family object: when one instance's objects go, the series is
    freed under the other instances, and under those of a model that is just being loaded anew. Seen: the
    counters disappear, and the load never ends.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
