"""Wait until a server has nothing to do, before it is told to stop.

Told to stop, Triton stops all models at once and counts only waiting requests as in flight: a pipeline's
next call of another model is then refused, however long the exit timeout is. So whoever stops a server waits
first for the requests that pipelines work on (:data:`slipway_serving.metrics.REQUESTS_RUNNING`): the embedded
server by itself, `slipway drain` for one that something else stops, e.g. as a Kubernetes preStop hook.
"""

from __future__ import annotations

import http.client
import re
import time
import urllib.request

from slipway_serving.metrics import REQUESTS_RUNNING

_RUNNING = re.compile(rf"^{REQUESTS_RUNNING.name}\{{[^}}]*\}} (\S+)$", re.MULTILINE)
_POLL_S = 0.1
# Between the end of one request and the start of one that waited, nothing runs for a moment.
_QUIET_LOOKS = 2
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def requests_running(metrics_url: str) -> int | None:
    """Return how many requests a server's pipelines work on; None where its metrics cannot be read."""
    try:
        with _DIRECT.open(metrics_url, timeout=2) as response:
            text = response.read().decode()
    except (OSError, http.client.HTTPException):
        return None
    return round(sum(float(value) for value in _RUNNING.findall(text)))


def wait_until_idle(metrics_url: str, limit_s: float) -> int | None:
    """Wait until pipelines have nothing to do, or the time is over.

    Args:
        metrics_url: of the server's metrics.
        limit_s: longest wait, seconds.

    Returns:
        How many requests were left: 0 when it became idle; None when the metrics cannot be read.
    """
    deadline = time.monotonic() + limit_s
    quiet = 0
    while (count := requests_running(metrics_url)) is not None:
        quiet = 0 if count else quiet + 1
        if quiet == _QUIET_LOOKS or time.monotonic() >= deadline:
            return count
        time.sleep(_POLL_S)
    return None
