"""Signal that any number of tasks of one event loop wait for."""

from __future__ import annotations

import asyncio
import contextlib


class Signal:
    """Signal that is given again and again.

    A task reads :attr:`count`, checks its condition, and waits for a signal after that count, so that no
    signal between the check and the wait is lost.

    Attributes:
        count: Number of signals so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()

    def give(self) -> None:
        """Wake every task that waits."""
        self.count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def after(self, count: int, timeout_s: float | None = None) -> bool:
        """Wait for a signal after a count.

        Args:
            count: Value of :attr:`count` that the caller has seen.
            timeout_s: Longest wait in seconds; None waits without a limit.

        Returns:
            True if there was a signal, False after the time.
        """
        if self.count != count:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._next.wait()
        return self.count != count
