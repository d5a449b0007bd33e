"""The connections of a blocking HTTP client: each request has one for itself, so that it can be cut.

httpx limits each read, not a whole answer: a server that sends a byte now and then would be waited for
without an end. A :class:`Line` that is lent with a limit is cut when the time is over, wherever its request
is: in the headers, in the body, or in an event of a stream.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx


class Line:
    """A connection that one request at a time has for itself, so that it can be cut.

    Closing a socket does not wake a thread that waits for what comes over it; shutting it down does.

    Args:
        http: a client that nobody else uses.

    Attributes:
        was_cut: whether it takes no further request.
        is_late: whether it was cut since the time of its request was over.
    """

    def __init__(self, http: httpx.Client) -> None:
        self.http, self.was_cut, self.is_late = http, False, False
        self._connected: Any = None

    def traced(self, event: str, info: Mapping[str, Any]) -> None:
        """Take note of what httpcore connects (its `trace` extension)."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._connected = info["return_value"]
            if self.was_cut:
                self.cut()

    def cut(self) -> None:
        """End the connection, now or as soon as there is one; whoever reads from it comes to its end."""
        self.was_cut = True
        if self._connected is not None:
            with contextlib.suppress(OSError):
                self._connected.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def limited(self, limit_s: float | None) -> Iterator[None]:
        """Cut the connection if the block takes longer than a limit.

        Args:
            limit_s: Limit, seconds; None is none.
        """
        if limit_s is None:
            yield
            return
        timer = threading.Timer(limit_s, self._expired)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _expired(self) -> None:
        self.is_late = True
        self.cut()


class Connections:
    """The connections to a server: lines, each lent to one request at a time.

    Args:
        make: makes a client; nothing is connected by that.
    """

    def __init__(self, make: Callable[[], httpx.Client]) -> None:
        self._make = make
        self._lines: set[Line] = set()
        self._idle: list[Line] = []

    def close(self) -> None:
        """Close all; requests under way are cut."""
        for line in tuple(self._lines):
            line.cut()
            line.http.close()

    @contextlib.contextmanager
    def line(self) -> Iterator[Line]:
        """Lend a line for one request."""
        try:
            line = self._idle.pop()
        except IndexError:
            line = Line(self._make())
            self._lines.add(line)
        try:
            yield line
        finally:
            if line.was_cut:
                self._lines.discard(line)
                line.http.close()
            else:
                self._idle.append(line)
