"""Connection pools of limited lifetime, so that clients reach other replicas when one shuts down.

Behind a Kubernetes service a connection stays with the replica that it was opened to, even while that replica
shuts down. A connection over which the server refused a request takes no further request, and is closed when
the requests in progress on it have ended. Triton's gRPC port limits the age of connections itself
(`--grpc-max-connection-age`); its HTTP port does not, so the client retires those after :data:`AGE_S`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

C = TypeVar("C")

AGE_S = 30.0
"""Age in seconds at which HTTP connections retire, like gRPC ones by the chart's `timing.connectionAge`."""


class Pools(Generic[C]):
    """Succession of connection pools: the newest takes requests, older ones close when idle. Thread-safe.

    Args:
        make: Callback that creates a pool without connecting it.
        age_s: Age at which a pool takes no further request, in seconds.
        clock: Callback that returns the time in seconds.
    """

    def __init__(
        self, make: Callable[[], C], age_s: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make, self._age_s, self._clock = make, age_s, clock
        self._lock = threading.Lock()
        self._users: Counter[int] = Counter()
        self._pools: list[C] = [make()]
        self._created_s = clock()
        self._refused = False

    def acquire(self) -> C:
        """Return the pool for a request; the caller must give it back."""
        with self._lock:
            if self._refused or self._clock() - self._created_s >= self._age_s:
                self._pools.append(self._make())
                self._created_s, self._refused = self._clock(), False
            self._users[id(self._pools[-1])] += 1
            return self._pools[-1]

    def release(self, pool: C, *, refused: bool = False) -> list[C]:
        """Return a pool after its request has ended.

        Args:
            pool: Pool that the request took.
            refused: True if the server refused the request.

        Returns:
            Retired pools that no request uses any more; the caller must close them.
        """
        with self._lock:
            self._users[id(pool)] -= 1
            self._refused |= refused and pool is self._pools[-1]
            retired = [each for each in self._pools[:-1] if not self._users[id(each)]]
            self._pools = [each for each in self._pools if not any(each is one for one in retired)]
            return retired

    def retire(self) -> None:
        """Let later requests take a new pool, since the server of the newest one shuts down."""
        with self._lock:
            self._refused = True

    def all(self) -> list[C]:
        """Return all pools that are open."""
        with self._lock:
            return list(self._pools)
