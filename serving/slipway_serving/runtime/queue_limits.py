"""Queue limit for models with short requests; it refuses requests beyond the limit, the oldest first.

Triton has a queue limit of its own (`default_queue_policy`). But with that limit, Triton 2.51 and later hands
a batch only to an instance that it has seen idle. It looks for one when a batch ends, which is a moment too
early, and not again until another request is taken or 500 ms have passed: a full queue stalls. So the process
of a model that works without a pause reads from Triton's metrics how many requests wait, and answers the
excess ones without working on them. The queue then drains at the speed of refusals. Between two reads it
assumes that a queue that was too long keeps growing as before, since at three times the sustainable load,
half as many requests as may wait arrive between two reads.
"""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Callable, Sequence

from slipway_serving.protocol.errors import RETRY_HINT, Overloaded
from slipway_serving.protocol.turns import Turn

PARAMETER = "queue_limit"
"""Parameter of a model's `config.pbtxt`: the largest number of requests that may wait for it."""
MODELS_PARAMETER = "queue_limit_with"
"""Parameter of a model's `config.pbtxt`: further models, separated by spaces, whose waiting requests count
too. With it, the first model of an ensemble enforces the limit for all later ones, before any work is wasted.
"""
METRICS_VARIABLE = "SLIPWAY_METRICS"
"""Environment variable of a server's processes: host:port of its metrics, if that is not Triton's default."""
_METRICS = "localhost:8002"
# A model whose last batch ended longer ago than this has no queue, however busy the machine is.
_PAUSE_S = 0.1
# Writing and reading the metrics of 11 models takes 1 ms of a core.
_LOOK_S = 0.05
_TIMEOUT_S = 1.0

Pending = Callable[[], int]


class Waiting:
    """Queue limit of one instance of a model, used only by the thread that receives its requests.

    Args:
        model: Name of the model.
        limit: Largest number of requests that may wait; None sets no limit.
        pending: Function that returns how many requests wait, see :func:`pending_by_metrics`.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self, model: str, limit: int | None, pending: Pending, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._model, self._limit, self._pending, self._clock = model, limit, pending, clock
        self._ended_s = self._looked_s = -float("inf")
        self._seen, self._refused, self._growth_per_s = 0, 0, 0.0

    def beyond(self) -> int:
        """Return by how many the waiting requests exceed the limit now."""
        if self._limit is None:
            return 0
        now_s = self._clock()
        if now_s - self._ended_s > _PAUSE_S:
            self._seen = self._refused = 0
            self._growth_per_s = 0.0
        elif now_s - self._looked_s > _LOOK_S:
            self._look(self._limit)
        # Requests that came since the last read are unknown, so we estimate them from the growth before it.
        grown = self._growth_per_s * (now_s - self._looked_s) if self._growth_per_s else 0.0
        return max(0, int(self._seen + grown) - self._refused - self._limit)

    def _look(self, limit: int) -> None:
        before, since_s = self._seen - self._refused, self._clock() - self._looked_s
        self._seen = self._pending()
        self._looked_s = self._clock()
        # A burst that fits into the queue says nothing about further growth.
        full = self._seen > limit or self._refused > 0
        self._growth_per_s = max(0.0, (self._seen - before) / since_s) if full else 0.0
        self._refused = 0

    def ended(self) -> None:
        """Record that a batch was answered."""
        self._ended_s = self._clock()

    def refusal(self) -> Overloaded:
        """Return the error for a request beyond the limit, and count that request as refused."""
        self._refused += 1
        return Overloaded(f"{self._model}: at most {self._limit} requests may wait; {RETRY_HINT}")


def first_to_go(turns: Sequence[Turn], count: int) -> frozenset[int]:
    """Return the indices of a batch's requests to refuse: first those that begin sessions, then the oldest.

    This lets open sessions continue for as long as possible. A request that only ends its session is never
    refused, since it frees the session's state.

    Args:
        turns: Turns of the requests, the oldest request first.
        count: Number of requests to refuse.
    """
    may_go = [place for place, turn in enumerate(turns) if turn.start or not turn.end]
    return frozenset(sorted(may_go, key=lambda place: not turns[place].start)[:count])


def pending_by_metrics(models: Sequence[str], warn: Callable[[str], None]) -> Pending:
    """Return a function that reads from Triton's metrics how many requests wait for models.

    Args:
        models: Names of the models, first the one that enforces the limit.
        warn: Callback that receives one warning if the metrics cannot be read; 0 is assumed then.
    """
    address = os.environ.get(METRICS_VARIABLE, _METRICS)
    wanted = tuple(f'nv_inference_pending_request_count{{model="{model}",'.encode() for model in models)
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    warned = False

    def pending() -> int:
        nonlocal warned
        try:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if not warned:
                warn(
                    f"{models[0]}: metrics must be at {address} for its {PARAMETER} to be kept, got {error!r}"
                )
            warned = True
            return 0
        lines = (line for line in page.splitlines() if line.startswith(wanted))
        return sum(int(float(line.rpartition(b" ")[2])) for line in lines)

    return pending
