"""Connections that do not stay for ever, so that they come to other replicas when one goes.

Behind a service a connection leads to the replica that it was made to, also when that is about to stop. One
over which a server refused a request takes no other, and is closed when what is under way on it has ended.
Triton's gRPC port ends connections at an age by itself (`--grpc-max-connection-age`), its HTTP port does not:
those are let go after :data:`AGE_S`.
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
"""Seconds after which HTTP connections take no further request, as gRPC ones by `timing.connectionAge`."""


class Pools(Generic[C]):
    """Which pool of connections is used, and which of the earlier ones can be closed; for several threads.

    Args:
        make: makes a pool; nothing is connected by that.
        age_s: after which a pool takes no further request, seconds.
        clock: of seconds.
    """

    def __init__(
        self, make: Callable[[], C], age_s: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make, self._age_s, self._clock = make, age_s, clock
        self._lock = threading.Lock()
        self._users: Counter[int] = Counter()
        self._pools: list[C] = [make()]
        self._born_s = clock()
        self._refused = False

    def take(self) -> C:
        """Return the pool for a request; it is to be given back."""
        with self._lock:
            if self._refused or self._clock() - self._born_s >= self._age_s:
                self._pools.append(self._make())
                self._born_s, self._refused = self._clock(), False
            self._users[id(self._pools[-1])] += 1
            return self._pools[-1]

    def give_back(self, pool: C, *, refused: bool = False) -> list[C]:
        """Take note that a request has ended.

        Args:
            pool: that it took.
            refused: whether the server refused it.

        Returns:
            Pools that nobody uses any more, to be closed.
        """
        with self._lock:
            self._users[id(pool)] -= 1
            self._refused |= refused and pool is self._pools[-1]
            over = [each for each in self._pools[:-1] if not self._users[id(each)]]
            self._pools = [each for each in self._pools if not any(each is one for one in over)]
            return over

    def all(self) -> list[C]:
        """Return all pools that are open."""
        with self._lock:
            return list(self._pools)
