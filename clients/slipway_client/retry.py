"""When to try again and when to give up: pure arithmetic on an injected clock.

A client asks :meth:`Attempts.wait_s` after each failure; the answer is how long to sleep, or the failure
itself when another attempt would be wrong (it is not a refusal), or not worth it (budget or deadline spent).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from slipway_serving import durations
from slipway_serving.errors import DeadlineExceeded, NotReady, Overloaded, SlipwayError


class UnknownModel(NotReady):
    """The server has no model of that name; waiting does not bring one."""

    # Triton answers NOT_FOUND for a model that is still loading too; only the text tells them apart.
    said: ClassVar[str] = "is not found"


class NotTriton(NotReady):
    """What answers at the address is not Triton; waiting does not change that."""


_HOPELESS = (UnknownModel, NotTriton)


@dataclass(frozen=True)
class RetryPolicy:
    """How long a refused request is tried again.

    The n-th wait is uniform between 0 and ``base_s * 2**n``, at most ``max_s`` (exponential backoff with full
    jitter), so that many clients of one server do not come back together.

    Attributes:
        budget_s: no attempt starts later than this after the first, seconds; 0 tries once.
        base_s: upper bound of the first wait, seconds.
        max_s: upper bound of any wait, seconds.
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
    """A time limit that began to run when it was made."""

    def __init__(
        self,
        limit_s: float | None,
        where: str,
        clock: Callable[[], float] = time.monotonic,
        grace_s: float = 0.0,
    ) -> None:
        """Start a limit.

        Args:
            limit_s: the limit, seconds; None never ends.
            where: what it is for; begins the error's text.
            clock: seconds from any fixed point.
            grace_s: how much longer to listen to a server that knows the limit itself, seconds: it can say
                how far it came.

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
            DeadlineExceeded: none are left.
        """
        if self._limit_s is None:
            return None
        left_s = self._start_s + self._limit_s + self._grace_s - self._clock()
        if left_s <= 0:
            raise self.exceeded()
        return left_s

    def within(self, limit_s: float) -> float:
        """Return the seconds that one question may take, the question's own limit included.

        Args:
            limit_s: Limit of the question itself, seconds.

        Raises:
            DeadlineExceeded: None are left.
        """
        left_s = self.remaining_s()
        return limit_s if left_s is None else min(limit_s, left_s)

    def exceeded(self) -> DeadlineExceeded:
        """Return the error that says so."""
        return DeadlineExceeded(f"{self._where}: not done within {self._limit_s:g} s; try a longer timeout")


UNLIMITED = Deadline(None, "")
"""The deadline of what has none."""


class Attempts:
    """The attempts of one request."""

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
        self._failed = 0

    def wait_s(self, error: SlipwayError) -> float:
        """Return how long to wait before the next attempt, in seconds.

        Args:
            error: why this one failed, before any response.

        Raises:
            SlipwayError: that error, when there is to be no next attempt.
            DeadlineExceeded: the request's own time is over.
        """
        left_s = self._deadline.remaining_s()
        if not isinstance(error, NotReady | Overloaded) or isinstance(error, _HOPELESS):
            raise error
        wait_s = self._uniform(0.0, self._policy.ceiling_s(self._failed))
        self._failed += 1
        too_late = self._clock() - self._start_s + wait_s >= self._policy.budget_s
        if too_late or (left_s is not None and wait_s >= left_s):
            raise error
        return wait_s
