"""A limit of the requests that wait for a model of short ones; those beyond it are refused, the oldest first.

The queue is Triton's, and so could its limit be (`default_queue_policy`). But with one Triton 2.51, and those
after it, hands a batch only to an instance that it has seen idle, looks for one when a batch ends, which is a
moment too early, and then not before another request is taken or 500 ms have passed: a full queue stands
still. So the process of a model that works without a pause asks Triton's metrics how many requests wait, and
answers those that are too many without working on them. A queue drains so at the speed of refusals. Between
two looks it takes a queue that was too long to grow as it did before, since at three times what is carried
half as many as may wait come in the time of a look.
"""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Callable, Sequence

from slipway_serving.errors import RETRY_HINT, Overloaded
from slipway_serving.turns import Turn

PARAMETER = "queue_limit"
"""Parameter of a model's `config.pbtxt`: requests that may wait for it."""
MODELS_PARAMETER = "queue_limit_with"
"""Parameter beside it: the models, with spaces between, whose waiting requests count too. What comes first in
an ensemble so keeps the limit of all that comes after it, before any work is done in vain."""
METRICS_VARIABLE = "SLIPWAY_METRICS"
"""Environment variable of a server's processes: host:port of its metrics, where that is not Triton's own."""
_METRICS = "localhost:8002"
# A model whose last batch ended longer ago has no queue, however busy the machine is.
_PAUSE_S = 0.1
# Metrics of 11 models take 1 ms of a core to be written and read.
_LOOK_S = 0.05
_TIMEOUT_S = 1.0

Pending = Callable[[], int]


class Waiting:
    """The queue of one instance of a model; for the thread that its requests come in.

    Args:
        model: its name.
        limit: requests that may wait; None is any number.
        pending: asks how many wait; see :func:`pending_by_metrics`.
        clock: monotonic seconds.
    """

    def __init__(
        self, model: str, limit: int | None, pending: Pending, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._model, self._limit, self._pending, self._clock = model, limit, pending, clock
        self._ended_s = self._looked_s = -float("inf")
        self._seen, self._refused, self._growth_per_s = 0, 0, 0.0

    def beyond(self) -> int:
        """Return how many of the requests that wait are too many now."""
        if self._limit is None:
            return 0
        now_s = self._clock()
        if now_s - self._ended_s > _PAUSE_S:
            self._seen = self._refused = 0
            self._growth_per_s = 0.0
        elif now_s - self._looked_s > _LOOK_S:
            self._look(self._limit)
        # What has come since the last look is not seen, only how the queue grew before it.
        grown = self._growth_per_s * (now_s - self._looked_s) if self._growth_per_s else 0.0
        return max(0, int(self._seen + grown) - self._refused - self._limit)

    def _look(self, limit: int) -> None:
        before, since_s = self._seen - self._refused, self._clock() - self._looked_s
        self._seen = self._pending()
        self._looked_s = self._clock()
        # A burst that the queue has room for is none to be foreseen.
        full = self._seen > limit or self._refused > 0
        self._growth_per_s = max(0.0, (self._seen - before) / since_s) if full else 0.0
        self._refused = 0

    def ended(self) -> None:
        """Take note that a batch was answered."""
        self._ended_s = self._clock()

    def refusal(self) -> Overloaded:
        """Return what a request that is beyond the limit is told, which waits no longer then."""
        self._refused += 1
        return Overloaded(f"{self._model}: at most {self._limit} requests may wait; {RETRY_HINT}")


def first_to_go(turns: Sequence[Turn], count: int) -> frozenset[int]:
    """Return the places of a batch's requests that are refused: of those beginning sessions, then the oldest.

    What was let in so goes on for as long as it can. A request that ends its session is never refused, since
    it gives back what is held for it.

    Args:
        turns: the requests' places in their sessions, the oldest request first.
        count: how many are too many.
    """
    may_go = [place for place, turn in enumerate(turns) if turn.start or not turn.end]
    return frozenset(sorted(may_go, key=lambda place: not turns[place].start)[:count])


def pending_by_metrics(models: Sequence[str], warn: Callable[[str], None]) -> Pending:
    """Return what asks Triton's metrics how many requests wait for models.

    Args:
        models: their names, first the one that keeps the limit.
        warn: told once that metrics cannot be read, and that 0 is assumed then.
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
