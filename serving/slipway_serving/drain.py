"""Wait until a server has nothing to do, before it is told to stop.

Told to stop, Triton stops all models at once and counts only waiting requests as in flight: a pipeline's
next call of another model is then refused, however long the exit timeout is. So whoever stops a server waits
first for the requests that pipelines work on (:data:`slipway_serving.metrics.REQUESTS_RUNNING`): the embedded
server by itself, `slipway drain` for one that something else stops, e.g. as a Kubernetes preStop hook.
Requests that come meanwhile are refused (:mod:`slipway_serving.going`), or a busy server would never be idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from slipway_serving.going import Going, tell
from slipway_serving.metrics import REQUESTS_RUNNING

_POLL_S = 0.1
# Between the end of one request and the start of one that waited, nothing runs for a moment.
_QUIET_LOOKS = 2

_TRITONS = "nv_"
"""Begins the names of Triton's own metrics: a page without any is another server's, and says nothing."""


def requests_running(metrics_url: str) -> int | None:
    """Return how many requests a server's pipelines work on; None where its metrics cannot be read."""
    with _client() as client:
        return _running(client, metrics_url)


def _client() -> httpx.Client:
    # A proxy of the environment is for the world outside, not for a server of our own.
    return httpx.Client(timeout=2, trust_env=False)


def _running(client: httpx.Client, metrics_url: str) -> int | None:
    try:
        text = client.get(metrics_url).raise_for_status().text
        families = list(text_string_to_metric_families(text))
        if not any(family.name.startswith(_TRITONS) for family in families):
            return None
        samples = (sample for family in families for sample in family.samples)
        return round(sum(sample.value for sample in samples if sample.name == REQUESTS_RUNNING.name))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OverflowError):
        return None


def drain(metrics_url: str, limit_s: float, folder: Path | None = None) -> int | None:
    """Wait until pipelines have nothing to do, or the time is over, while models refuse what comes.

    Args:
        metrics_url: of the server's metrics.
        limit_s: longest wait, seconds.
        folder: of the server, by which its models are told; None only waits.

    Returns:
        As :func:`wait_until_idle`.
    """
    return _drained(lambda: wait_until_idle(metrics_url, limit_s), folder)


def drain_known(running: Callable[[], int | None], limit_s: float, folder: Path) -> int | None:
    """Do as :func:`drain` where one knows better than the metrics what runs; see :func:`wait_for_none`."""
    return _drained(lambda: wait_for_none(running, limit_s), folder)


def _drained(wait: Callable[[], int | None], folder: Path | None) -> int | None:
    if folder is not None:
        tell(folder, Going.PIPELINES_REFUSE)
    left = wait()
    if folder is not None and left == 0:
        tell(folder, Going.ALL_REFUSE)
    return left


def wait_until_idle(metrics_url: str, limit_s: float) -> int | None:
    """Wait until pipelines have nothing to do, or the time is over.

    Args:
        metrics_url: of the server's metrics.
        limit_s: longest wait, seconds.

    Returns:
        How many requests were left: 0 when it became idle; None when the metrics cannot be read.
    """
    # One client for all looks: to make one takes half as long as to wait between two.
    with _client() as client:
        return wait_for_none(lambda: _running(client, metrics_url), limit_s)


def wait_for_none(running: Callable[[], int | None], limit_s: float) -> int | None:
    """Wait until nothing runs, or the time is over; see :func:`wait_until_idle`.

    Args:
        running: returns how many requests run; None where that cannot be told.
        limit_s: longest wait, seconds.
    """
    deadline = time.monotonic() + limit_s
    quiet = 0
    while (count := running()) is not None:
        quiet = 0 if count else quiet + 1
        if quiet == _QUIET_LOOKS or time.monotonic() >= deadline:
            return count
        time.sleep(_POLL_S)
    return None
