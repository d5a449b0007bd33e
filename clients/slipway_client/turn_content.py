"""Content of the next turn, which may change while a turn runs; only the latest value counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Content of a session's next turn; any thread may set it at any time.

    Iterating yields the latest content at the start of each turn, until :meth:`end`. Content that is set
    while a turn runs counts for the next turn; of several values only the last counts. Iterating never
    blocks, so it works with asyncio too::

        latest = Latest(forward)
        for actions in latest:
            for event in session.step(actions): ...

    Args:
        content: Content of the first turn.
    """

    def __init__(self, content: T) -> None:
        self._content = content
        self._ended = threading.Event()

    def set(self, content: T) -> None:
        """Set the content of the next turn and of all later ones, until it is set again."""
        self._content = content

    def end(self) -> None:
        """End the iteration, so that no further turn begins."""
        self._ended.set()

    def __iter__(self) -> Iterator[T]:
        while not self._ended.is_set():
            yield self._content
