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

QUEUE_LIMIT_PARAMETER = "queue_limit"
"""Parameter of a model's `config.pbtxt`: the largest number of requests that may wait for it."""
QUEUE_MODELS_PARAMETER = "queue_limit_with"
"""Parameter of a model's `config.pbtxt`: further models, separated by spaces, whose waiting requests count
too. With it, the first model of an ensemble enforces the limit for all later ones, before any work is wasted.
"""
METRICS_VARIABLE = "SLIPWAY_METRICS"
"""Environment variable of a server's processes: host:port of its metrics, if that is not Triton's default."""
_DEFAULT_METRICS = "localhost:8002"
# A model whose last batch ended longer ago than this has no queue, however busy the machine is.
_IDLE_S = 0.1
# A read of the metrics of 11 models takes 1 ms of a core, so this interval costs 2 % of a core.
_READ_INTERVAL_S = 0.05
_TIMEOUT_S = 1.0

CountPending = Callable[[], int]


class QueueLimit:
    """Queue limit of one instance of a model, used only by the thread that receives its requests.

    Args:
        model: Name of the model.
        limit: Largest number of requests that may wait; None sets no limit.
        count_pending: Function that returns how many requests wait, see :func:`pending_from_metrics`.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        model: str,
        limit: int | None,
        count_pending: CountPending,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model, self._limit, self._count_pending, self._clock = model, limit, count_pending, clock
        self._batch_end_s = self._read_s = -float("inf")
        self._pending_at_read, self._refused, self._growth_per_s = 0, 0, 0.0

    def count_excess(self) -> int:
        """Return by how many the waiting requests exceed the limit now."""
        if self._limit is None:
            return 0
        now_s = self._clock()
        if now_s - self._batch_end_s > _IDLE_S:
            self._pending_at_read = self._refused = 0
            self._growth_per_s = 0.0
        elif now_s - self._read_s > _READ_INTERVAL_S:
            self._read_pending(self._limit)
        # Requests that came since the last read are unknown, so we estimate them from the growth before it.
        growth = self._growth_per_s * (now_s - self._read_s) if self._growth_per_s else 0.0
        return max(0, int(self._pending_at_read + growth) - self._refused - self._limit)

    def _read_pending(self, limit: int) -> None:
        """Read how many requests wait, and estimate how fast their number grows."""
        before, since_s = self._pending_at_read - self._refused, self._clock() - self._read_s
        self._pending_at_read = self._count_pending()
        self._read_s = self._clock()
        # A burst that fits into the queue says nothing about further growth.
        full = self._pending_at_read > limit or self._refused > 0
        self._growth_per_s = max(0.0, (self._pending_at_read - before) / since_s) if full else 0.0
        self._refused = 0

    def record_batch_end(self) -> None:
        """Record that a batch was answered."""
        self._batch_end_s = self._clock()

    def refuse(self) -> Overloaded:
        """Return the error for a request beyond the limit, and count that request as refused."""
        self._refused += 1
        return Overloaded(
            f"{self._model}: the queue is full (at most {self._limit} requests may wait); {RETRY_HINT}"
        )


def select_refused(turns: Sequence[Turn], count: int) -> frozenset[int]:
    """Return the indices of a batch's requests to refuse: first those that begin sessions, then the oldest.

    This lets open sessions continue for as long as possible. A request that only ends its session is never
    refused, since it frees the session's state.

    Args:
        turns: Turns of the requests, the oldest request first.
        count: Number of requests to refuse.
    """
    candidates = [index for index, turn in enumerate(turns) if turn.start or not turn.end]
    return frozenset(sorted(candidates, key=lambda index: not turns[index].start)[:count])


def pending_from_metrics(models: Sequence[str], warn: Callable[[str], None]) -> CountPending:
    """Return a function that reads from Triton's metrics how many requests wait for models.

    Args:
        models: Names of the models, first the one that enforces the limit.
        warn: Callback that receives one warning if the metrics cannot be read; 0 is assumed then.
    """
    address = os.environ.get(METRICS_VARIABLE, _DEFAULT_METRICS)
    wanted = tuple(f'nv_inference_pending_request_count{{model="{model}",'.encode() for model in models)
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    warned = False

    def pending() -> int:
        """Return how many requests wait for the models; warn once if the metrics cannot be read."""
        nonlocal warned
        try:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if not warned:
                warn(
                    f"{models[0]}: {QUEUE_LIMIT_PARAMETER} is not enforced, since Triton's metrics cannot be"
                    f" read at {address} ({error!r}); set {METRICS_VARIABLE} to the server's metrics endpoint"
                )
            warned = True
            return 0
        lines = (line for line in page.splitlines() if line.startswith(wanted))
        return sum(int(float(line.rpartition(b" ")[2])) for line in lines)

    return pending
