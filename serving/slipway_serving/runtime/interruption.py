"""Check for cancellation and the time limit between the steps of a request's work."""

from __future__ import annotations

import time
from collections.abc import Callable

from slipway_serving.protocol.errors import Cancelled, DeadlineExceeded


class Interruption:
    """Cancellation and deadline check of one request; the time runs from its creation.

    Args:
        where: Name of the model that works, for error messages.
        is_cancelled: Function that returns True if the caller has cancelled the request.
        limit_s: Longest time for the work, in seconds; None sets no limit.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        where: str,
        is_cancelled: Callable[[], bool],
        limit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._where, self._is_cancelled, self._limit_s, self._clock = where, is_cancelled, limit_s, clock
        self._started_s = clock()

    def elapsed_s(self) -> float:
        """Return the time since the work began, in seconds."""
        return self._clock() - self._started_s

    def check(self, point: str) -> None:
        """Raise an error if the caller has cancelled the request or its time limit has passed.

        Args:
            point: Progress of the work, for the message, for example "before step 4 of 50".

        Raises:
            Cancelled: The caller has cancelled the request.
            DeadlineExceeded: The time limit has passed.
        """
        if self._is_cancelled():
            raise Cancelled(f"{self._where}: cancelled by the caller {point}")
        if self._limit_s is not None and self.elapsed_s() >= self._limit_s:
            raise DeadlineExceeded(
                f"{self._where}: the work must end within its time limit of {self._limit_s:g} s, got "
                f"{self.elapsed_s():.3g} s {point}; try a longer limit, fewer steps or a smaller result"
            )
