"""Line of those who wait for a free session of a model, first come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from slipway_gateway.replicas.replica import Replica
from slipway_gateway.signal import Signal
from slipway_serving.protocol.errors import NotReady, Overloaded

LONGEST_LINE = 256
"""Largest number of callers that wait for one model; further ones are refused."""
OnPosition = Callable[[int, int], Awaitable[None]]
"""Callback that receives a position in line, from 1, and the length of the line."""


class Fleet(Protocol):
    """Replicas as a line sees them."""

    def ready(self, model: str | None = None) -> tuple[Replica, ...]:
        """Return the replicas that take new work, of a model if one is given."""

    def unserved(self, model: str) -> NotReady:
        """Return the error for a model that no ready replica serves."""


@dataclass(eq=False)
class SessionPlace:
    """Place of a session on a replica; ``async with place`` gives it back.

    Attributes:
        replica: Replica of the session.
        model: Name of the served model.
    """

    replica: Replica
    model: str
    _changed: Signal
    _released: bool = field(default=False)

    def release(self) -> None:
        """Give the place back; a second call does nothing."""
        if not self._released:
            self._released = True
            self.replica.remove_session(self.model)
            self._changed.give()

    def refuse(self) -> None:
        """Give the place back because the server said that it has no free session."""
        self.release()
        self.replica.record_full(self.model)

    async def __aenter__(self) -> SessionPlace:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class SessionLine:
    """Lines of all models.

    Args:
        fleet: Replicas.
        changed: Signal that is given when a place may have become free.
    """

    def __init__(self, fleet: Fleet, changed: Signal) -> None:
        self._fleet, self._changed = fleet, changed
        self._lines: dict[str, list[object]] = {}

    def length(self, model: str) -> int:
        """Return how many callers wait for a session of a model."""
        return len(self._lines.get(model, ()))

    def lengths(self) -> dict[str, int]:
        """Return how many callers wait for a session, by model; models without any are left out."""
        return {model: len(line) for model, line in self._lines.items()}

    async def take(
        self,
        model: str,
        timeout_s: float | None,
        on_position: OnPosition | None,
        without: frozenset[str],
        *,
        first: bool = False,
    ) -> SessionPlace:
        """Take a place; see :meth:`slipway_gateway.replicas.replicas.Replicas.take_session`."""
        line, caller = self._lines.setdefault(model, []), object()
        if len(line) >= LONGEST_LINE and not first:
            raise Overloaded(f"{model}: {LONGEST_LINE} callers wait for a session already; try again later")
        line.insert(0 if first else len(line), caller)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._wait(model, line, caller, on_position, without)
        except TimeoutError:
            raise Overloaded(
                f"{model}: no session became free within {timeout_s:g} s; try again later"
            ) from None
        finally:
            line.remove(caller)
            if not line and self._lines.get(model) is line:
                del self._lines[model]
            # Everybody behind has moved up.
            self._changed.give()

    async def _wait(
        self,
        model: str,
        line: list[object],
        caller: object,
        on_position: OnPosition | None,
        without: frozenset[str],
    ) -> SessionPlace:
        told: tuple[int, int] | None = None
        while True:
            seen = self._changed.count
            ready = [each for each in self._fleet.ready(model) if each.url not in without]
            if not ready:
                raise self._fleet.unserved(model)
            free = [(count, each) for each in ready if (count := each.free_sessions(model))]
            if free and line[0] is caller:
                _, replica = max(free, key=lambda each: each[0])
                replica.add_session(model)
                return SessionPlace(replica, model, self._changed)
            now = (line.index(caller) + 1, len(line))
            if on_position is not None and now != told:
                told = now
                await on_position(*now)
            # The sessions of other callers end without a signal, so look again after a while.
            await self._changed.after(seen, 1.0)
