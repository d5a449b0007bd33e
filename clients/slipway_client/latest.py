"""Turns that are steered while others are worked on: the latest counts, and nothing queues up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """What a session's next turn brings; set from anywhere, at any time.

    Iterating gives what was set last whenever a turn is begun, until :meth:`end`: what is set while one is
    worked on counts for the next, and of several only the last. Never waits, so it does for asyncio too::

        latest = Latest(forward)
        for actions in latest:
            for event in session.step(actions): ...

    Args:
        content: of the first turn.
    """

    def __init__(self, content: T) -> None:
        self._content = content
        self._ended = threading.Event()

    def set(self, content: T) -> None:
        """Set what the next turn brings, and each after it until it is set again."""
        self._content = content

    def end(self) -> None:
        """Begin no other turn."""
        self._ended.set()

    def __iter__(self) -> Iterator[T]:
        while not self._ended.is_set():
            yield self._content
