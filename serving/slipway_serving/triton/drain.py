"""Drain a server: wait until its pipelines are idle before it is stopped.

On shutdown, Triton stops all models at once and counts only waiting requests as in flight: it then refuses a
pipeline's next call of another model, however long the exit timeout is. So the caller first waits for the
requests that pipelines work on (:data:`slipway_serving.runtime.metrics.REQUESTS_RUNNING`). The embedded
server does this itself; `slipway drain` does it where something else stops the server, e.g. as a Kubernetes
preStop hook. Models refuse new requests meanwhile (:mod:`slipway_serving.runtime.shutdown`), or a busy server
would never be idle. A drain with a checkpoint also makes pipelines stop their videos at the next step
boundary, so that the wait lasts for one step rather than for whole videos.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from slipway_serving.runtime.metrics import REQUESTS_RUNNING
from slipway_serving.runtime.shutdown import ShutdownStage, announce
from slipway_serving.system.process_state import running_work

_POLL_S = 0.1
# The server counts as drained after this many idle polls in a row. A single poll may fall between the end of
# a request and the start of a waiting one.
_IDLE_POLLS = 2
# While a pipeline has open sessions, their callers may move them to another server part by part, and between
# two parts no request runs. A caller that never asks for a session delays the stop by this much only.
_IDLE_POLLS_WITH_SESSIONS = 50

_TRITON_PREFIX = "nv_"
"""Prefix of Triton's own metrics; a page without any of them belongs to another server."""


def count_running_requests(metrics_url: str) -> int | None:
    """Return how many requests a server's pipelines work on; None if its metrics cannot be read."""
    with _client() as client:
        return _read_running_requests(client, metrics_url)


def _client() -> httpx.Client:
    # Ignore the environment's proxy: it is meant for external hosts, not for this server.
    return httpx.Client(timeout=2, trust_env=False)


def _read_running_requests(client: httpx.Client, metrics_url: str) -> int | None:
    """Read how many requests pipelines work on; return None if the page is not readable or not Triton's."""
    try:
        text = client.get(metrics_url).raise_for_status().text
        families = list(text_string_to_metric_families(text))
        if not any(family.name.startswith(_TRITON_PREFIX) for family in families):
            return None
        samples = (sample for family in families for sample in family.samples)
        return round(sum(sample.value for sample in samples if sample.name == REQUESTS_RUNNING.name))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OverflowError):
        return None


def drain(
    metrics_url: str, limit_s: float, folder: Path | None = None, *, checkpoint: bool = False
) -> int | None:
    """Wait until pipelines are idle or the time limit is reached, while models refuse new requests.

    Args:
        metrics_url: URL of the server's metrics.
        limit_s: Longest wait, in seconds.
        folder: The server's runtime folder, through which models learn to refuse; None only waits.
        checkpoint: True if pipelines stop their videos at the next step boundary and send their states; needs
            a folder.

    Returns:
        The number that :func:`wait_until_idle` returns.
    """
    sessions = _session_count(folder)
    return _drain(lambda: wait_until_idle(metrics_url, limit_s, sessions), folder, checkpoint=checkpoint)


def drain_by_count(
    running: Callable[[], int | None], limit_s: float, folder: Path, *, checkpoint: bool = False
) -> int | None:
    """Drain a server as :func:`drain` does, but count its running requests with a callback.

    Args:
        running: Callback that returns how many requests run; None if that is unknown.
        limit_s: Longest wait, in seconds.
        folder: The server's runtime folder, through which models learn to refuse.
        checkpoint: True if pipelines stop their videos, as for :func:`drain`.

    Returns:
        The number that :func:`wait_until_none_running` returns.
    """
    sessions = _session_count(folder)
    return _drain(lambda: wait_until_none_running(running, limit_s, sessions), folder, checkpoint=checkpoint)


def _session_count(folder: Path | None) -> Callable[[], int]:
    """Return a callback that counts the open sessions of pipelines, which refuse further turns."""
    if folder is None:
        return lambda: 0
    return lambda: sum(work.sessions for work in running_work(folder) if work.is_pipeline)


def _drain(wait: Callable[[], int | None], folder: Path | None, *, checkpoint: bool) -> int | None:
    if folder is not None:
        announce(folder, ShutdownStage.PIPELINES_REFUSE)
        # Only after the refusal, so that a caller cannot continue its stopped video on this server.
        if checkpoint:
            announce(folder, ShutdownStage.PIPELINES_STOP)
    left = wait()
    if folder is not None and left == 0:
        announce(folder, ShutdownStage.ALL_REFUSE)
    return left


def wait_until_idle(metrics_url: str, limit_s: float, sessions: Callable[[], int] = lambda: 0) -> int | None:
    """Wait until pipelines are idle or the time limit is reached.

    Args:
        metrics_url: URL of the server's metrics.
        limit_s: Longest wait, in seconds.
        sessions: Callback that returns how many open sessions may still be moved to another server; as long
            as there are any, the server counts as idle after a longer pause only.

    Returns:
        The number of requests left: 0 if the server became idle; None if the metrics cannot be read.
    """
    # All polls share one client, since making a client takes half as long as the wait between two polls.
    with _client() as client:
        return wait_until_none_running(lambda: _read_running_requests(client, metrics_url), limit_s, sessions)


def wait_until_none_running(
    running: Callable[[], int | None], limit_s: float, sessions: Callable[[], int] = lambda: 0
) -> int | None:
    """Wait until no request runs or the time limit is reached; see :func:`wait_until_idle`.

    Args:
        running: Callback that returns how many requests run; None if that is unknown.
        limit_s: Longest wait, in seconds.
        sessions: Callback that counts open sessions, see :func:`wait_until_idle`.
    """
    deadline = time.monotonic() + limit_s
    idle_polls = 0
    while (count := running()) is not None:
        idle_polls = 0 if count else idle_polls + 1
        is_idle = idle_polls >= _IDLE_POLLS and (idle_polls >= _IDLE_POLLS_WITH_SESSIONS or not sessions())
        if is_idle or time.monotonic() >= deadline:
            return count
        time.sleep(_POLL_S)
    return None
