"""Retry policy and deadlines: pure arithmetic on an injected clock.

A client calls :meth:`Attempts.wait_s` after each failure. It returns the time to sleep, or raises the failure
if another attempt would be wrong (the failure is no refusal) or too late (budget or deadline spent).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from slipway_serving.protocol import durations
from slipway_serving.protocol.errors import DeadlineExceeded, NotReady, Overloaded, SlipwayError


class UnknownModel(NotReady):
    """Error for a model name that the server does not have; waiting does not help."""

    # Triton also answers NOT_FOUND for a model that is still loading; only the text tells them apart.
    triton_text: ClassVar[str] = "is not found"


class NotTriton(NotReady):
    """Error for an address that answers but is not Triton; waiting does not help."""


_PERMANENT = (UnknownModel, NotTriton)


@dataclass(frozen=True)
class RetryPolicy:
    """Retry policy for refused requests.

    The n-th wait is uniform between 0 and ``base_s * 2**n``, at most ``max_s`` (exponential backoff with full
    jitter), so that many clients of one server do not retry at the same time.

    Attributes:
        budget_s: Time after the first attempt within which others may start, in seconds; 0 tries once.
        base_s: Upper bound of the first wait, in seconds.
        max_s: Upper bound of any wait, in seconds.
    """

    budget_s: float = 5.0
    base_s: float = 0.1
    max_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("budget_s", "base_s", "max_s"):
            durations.check("RetryPolicy", name, getattr(self, name), zero=True)

    def ceiling_s(self, attempt: int) -> float:
        """Return the longest wait after an attempt, counted from 0, in seconds."""
        return min(self.max_s, self.base_s * 2.0 ** min(attempt, 64))


class Deadline:
    """Time limit that starts when the object is created."""

    def __init__(
        self,
        limit_s: float | None,
        where: str,
        clock: Callable[[], float] = time.monotonic,
        grace_s: float = 0.0,
    ) -> None:
        """Start a limit.

        Args:
            limit_s: Limit in seconds; None never expires.
            where: Name of the limited work; the error's text begins with it.
            clock: Callback that returns the seconds since a fixed point.
            grace_s: Extra wait in seconds for a server that enforces the limit itself and can report how far
                it came.

        Raises:
            InvalidRequest: The limit is not a number above 0, or longer than 30 days.
        """
        durations.check(where, "timeout_s", limit_s)
        self._limit_s = limit_s
        self._where = where
        self._clock = clock
        self._grace_s = grace_s
        self._start_s = clock()

    def remaining_s(self) -> float | None:
        """Return the seconds left for an answer, grace included; None without a limit.

        Raises:
            DeadlineExceeded: No time is left.
        """
        if self._limit_s is None:
            return None
        remaining_s = self._start_s + self._limit_s + self._grace_s - self._clock()
        if remaining_s <= 0:
            raise self.exceeded()
        return remaining_s

    def within(self, limit_s: float) -> float:
        """Return the seconds that one health or metadata call may take, within its own limit.

        Args:
            limit_s: Limit of the call itself, in seconds.

        Raises:
            DeadlineExceeded: No time is left.
        """
        remaining_s = self.remaining_s()
        return limit_s if remaining_s is None else min(limit_s, remaining_s)

    def exceeded(self) -> DeadlineExceeded:
        """Return the error for an exceeded time limit."""
        return DeadlineExceeded(
            f"{self._where}: the call did not finish within {self._limit_s:g} s; try a longer timeout_s"
        )


UNLIMITED = Deadline(None, "")
"""Deadline that never expires."""


class Attempts:
    """Attempts of one request."""

    def __init__(
        self,
        policy: RetryPolicy,
        deadline: Deadline,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._policy = policy
        self._deadline = deadline
        self._clock = clock
        self._uniform = uniform
        self._start_s = clock()
        self._failures = 0

    def wait_s(self, error: SlipwayError) -> float:
        """Return how long to wait before the next attempt, in seconds.

        Args:
            error: Error of the failed attempt, before any response.

        Raises:
            SlipwayError: No further attempt is made, so `error` is raised.
            DeadlineExceeded: The request's own time limit is over.
        """
        remaining_s = self._deadline.remaining_s()
        if not isinstance(error, NotReady | Overloaded) or isinstance(error, _PERMANENT):
            raise error
        wait_s = self._uniform(0.0, self._policy.ceiling_s(self._failures))
        self._failures += 1
        too_late = self._clock() - self._start_s + wait_s >= self._policy.budget_s
        if too_late or (remaining_s is not None and wait_s >= remaining_s):
            raise error
        return wait_s
