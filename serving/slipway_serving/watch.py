"""Whether work should go on: asked between its steps, about the caller and about the time limit."""

from __future__ import annotations

import time
from collections.abc import Callable

from slipway_serving.errors import Cancelled, DeadlineExceeded


class Watch:
    """Runs from its creation on.

    Args:
        where: the model that works, for messages.
        is_cancelled: whether the caller has given up.
        limit_s: seconds that the work may take; None for any.
        clock: monotonic seconds.
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
        """Return the seconds since the work began."""
        return self._clock() - self._started_s

    def check(self, point: str) -> None:
        """Stop the work if nobody wants it any more or its time is up.

        Args:
            point: where the work stands, for example "before step 4 of 50".

        Raises:
            Cancelled: the caller has given up.
            DeadlineExceeded: the limit is passed.
        """
        if self._is_cancelled():
            raise Cancelled(f"{self._where}: cancelled by the caller {point}")
        if self._limit_s is not None and self.elapsed_s() >= self._limit_s:
            raise DeadlineExceeded(
                f"{self._where}: the work must end within its time limit of {self._limit_s:g} s, got "
                f"{self.elapsed_s():.3g} s {point}; try a longer limit, fewer steps or a smaller video"
            )
