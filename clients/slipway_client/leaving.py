"""How a client leaves a call whose answer it no longer wants: it asks the server to end the work.

A message with the request's id goes to the model `slipway_cancel` of the same server. The loop that works on
the request sees it at its next step and ends the stream, as any error does. The call is cut where that does
not come in time: the server has no such model, does not know the request, or is busy with one long step.
Cutting is what Triton 2.51 sometimes dies of (server#7368, #8034), so it is the last resort.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import numpy as np

from slipway_client.tensors import Tensors
from slipway_serving.cancelling.request import EndRequest
from slipway_serving.requests import encode

CUT_S = 5.0
"""Seconds that a loop gets to see that it is asked to end; then its call is cut."""
KNOWN_S = 1.0
"""Seconds in which a server must say that it knows the request; one that waits in a queue has not begun."""
LATE_S = 1.0
"""The same after a time limit, which a caller waits for. A call that answers once has it to end by itself."""
_AGAIN_S = 0.05


def made_id() -> str:
    """Return an id of a request by which it, and no other, can be ended."""
    return f"slipway-{secrets.token_hex(16)}"


def ending(request_id: str) -> tuple[str, Tensors]:
    """Return the model that ends a request, and what it is sent."""
    return EndRequest.model, encode(EndRequest(request_id))


def was_found(answer: Tensors) -> bool:
    """Tell from the answer whether the request is under way on the server."""
    return bool(np.any(answer["found"]))


class Leave:
    """The way out of one blocking call; use as a context manager around it.

    Args:
        end: asks the server to end the request; tells whether it knows it, None where it cannot be asked.
        cut: cuts the call.
        limit_s: seconds after which the call is left by itself; None for any.

    Attributes:
        is_late: whether it was left so.
    """

    def __init__(
        self, end: Callable[[], bool | None], cut: Callable[[], object], limit_s: float | None
    ) -> None:
        self._end, self._cut = end, cut
        self._over = threading.Event()
        self._timer = None if limit_s is None else threading.Timer(limit_s, self._expired)
        self.is_late = False

    def __enter__(self) -> Leave:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    def now(self) -> None:
        """Leave the call; whoever reads it comes to its end, at the latest when it is cut."""
        try:
            threading.Thread(target=self._ask, args=(CUT_S,), daemon=True).start()
        except RuntimeError:  # the interpreter ends
            self._cut()

    def _expired(self) -> None:
        self.is_late = True
        self._ask(LATE_S)

    def _ask(self, cut_s: float) -> None:
        started_s = time.monotonic()
        while not (found := self._end()):
            if found is None or self._over.wait(_AGAIN_S) or time.monotonic() - started_s > KNOWN_S:
                break
        left_s = started_s + cut_s - time.monotonic() if found else 0.0
        if not self._over.wait(max(0.0, left_s)):
            self._cut()


class AsyncLeave:
    """:class:`Leave` for asyncio."""

    def __init__(
        self, end: Callable[[], Awaitable[bool | None]], cut: Callable[[], object], limit_s: float | None
    ) -> None:
        self._end, self._cut, self._limit_s = end, cut, limit_s
        self._tasks: list[asyncio.Task[None]] = []
        self.is_late = False

    def __enter__(self) -> AsyncLeave:
        if self._limit_s is not None:
            self._start(self._expire(self._limit_s))
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()

    def now(self) -> None:
        """As :meth:`Leave.now`."""
        self._start(self._ask(CUT_S))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _expire(self, limit_s: float) -> None:
        await asyncio.sleep(limit_s)
        self.is_late = True
        await self._ask(LATE_S)

    async def _ask(self, cut_s: float) -> None:
        started_s = time.monotonic()
        while not (found := await self._end()):
            if found is None or time.monotonic() - started_s > KNOWN_S:
                break
            await asyncio.sleep(_AGAIN_S)
        if found:
            await asyncio.sleep(max(0.0, started_s + cut_s - time.monotonic()))
        self._cut()
