"""Stops that a caller asks for: the client sends them while it keeps reading the request's responses.

A caller sets an event. The client then asks the server to stop the request, again and again until the server
has found it, since a request in Triton's queue has not begun. The stream ends with the state of the video.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator

POLL_S = 0.1
"""Time in seconds after which a thread that waits for a caller's event looks whether its call has ended."""
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0


@contextlib.contextmanager
def stop_when_set(stop: threading.Event | None, ask: Callable[[], bool | None]) -> Iterator[None]:
    """Ask the server to stop a request once an event is set, while the block runs.

    Args:
        stop: Event of the caller; None never stops the request.
        ask: Callback that asks the server, and returns True if it has found the request.
    """
    if stop is None:
        yield
        return
    ended = threading.Event()
    threading.Thread(target=_ask_when_set, args=(stop, ask, ended), daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@contextlib.contextmanager
def async_stop_when_set(
    stop: asyncio.Event | None, ask: Callable[[], Awaitable[bool | None]]
) -> Iterator[None]:
    """Ask the server to stop a request, like :func:`stop_when_set`, in the running event loop."""
    if stop is None:
        yield
        return
    task = asyncio.get_running_loop().create_task(_ask_when_set_async(stop, ask))
    try:
        yield
    finally:
        task.cancel()


def _ask_when_set(stop: threading.Event, ask: Callable[[], bool | None], ended: threading.Event) -> None:
    while not stop.wait(POLL_S):
        if ended.is_set():
            return
    for wait_s in _waits_s():
        if ended.is_set() or ask() or ended.wait(wait_s):
            return


async def _ask_when_set_async(stop: asyncio.Event, ask: Callable[[], Awaitable[bool | None]]) -> None:
    await stop.wait()
    for wait_s in _waits_s():
        if await ask():
            return
        await asyncio.sleep(wait_s)


def _waits_s() -> Iterator[float]:
    """Yield the waits between two questions, in seconds."""
    wait_s = _FIRST_WAIT_S
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
