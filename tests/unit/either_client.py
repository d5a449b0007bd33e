"""A client that blocks, or one for asyncio, behind the same calls, so that one test covers both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

from slipway_client import AsyncClient, Client, RetryPolicy


class Sync:
    """A client that blocks, or one for asyncio, behind the same calls."""

    def __init__(self, url: str, asynchronous: bool, retry: RetryPolicy) -> None:
        self._asynchronous = asynchronous
        self._loop = asyncio.new_event_loop()
        self.client: Any = AsyncClient(url, retry=retry) if asynchronous else Client(url, retry=retry)

    def __call__(self, name: str, *arguments: Any, of: Any = None, **named: Any) -> Any:
        """Call a method by its name; what it yields is returned as a list."""
        found = getattr(of or self.client, name)(*arguments, **named)
        if hasattr(found, "__aiter__"):
            return self._loop.run_until_complete(_listed(found))
        if inspect.iscoroutine(found):
            return self._loop.run_until_complete(found)
        return list(found) if isinstance(found, Iterator) else found

    def next(self, events: Any) -> Any:
        return self._loop.run_until_complete(anext(events)) if self._asynchronous else next(events)

    def leave(self, events: Any) -> None:
        if self._asynchronous:
            self._loop.run_until_complete(events.aclose())
        else:
            events.close()

    def close(self) -> None:
        self("close")
        self._loop.close()


async def _listed(events: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in events]
