"""Connections of the blocking HTTP client, one per request, so that a request can be cut off.

The timeouts of httpx limit each read, not the whole answer, so a server that sends a byte now and then would
be waited for endlessly. A :class:`Connection` with a limit is cut when its time is over, whether the request
is in the headers, in the body, or in an event of a stream.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx


class Connection:
    """Connection that serves one request at a time, so that it can be cut.

    Closing a socket does not wake a thread that reads from it; shutting the socket down does.

    Args:
        http: Client for the exclusive use of this connection.

    Attributes:
        was_cut: True if the connection was cut; it then takes no further request.
        timed_out: True if the connection was cut because its request exceeded the time limit.
    """

    def __init__(self, http: httpx.Client) -> None:
        self.http, self.was_cut, self.timed_out = http, False, False
        self._network_stream: Any = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Record the connection that httpcore opens; callback of its `trace` extension."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._network_stream = info["return_value"]
            if self.was_cut:
                self.cut()

    def cut(self) -> None:
        """Shut the connection down, now or as soon as it is open; this ends all reads from it."""
        self.was_cut = True
        if self._network_stream is not None:
            with contextlib.suppress(OSError):
                self._network_stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def time_limit(self, limit_s: float | None) -> Iterator[None]:
        """Cut the connection if the block takes longer than a limit.

        Args:
            limit_s: Limit in seconds; None means no limit.
        """
        if limit_s is None:
            yield
            return
        timer = threading.Timer(limit_s, self._on_timeout)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _on_timeout(self) -> None:
        self.timed_out = True
        self.cut()


class ConnectionPool:
    """Pool of connections to a server; each serves one request at a time.

    Args:
        make: Callback that creates an HTTP client without connecting it.
    """

    def __init__(self, make: Callable[[], httpx.Client]) -> None:
        self._make = make
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []

    def close(self) -> None:
        """Close all connections and cut the requests in progress."""
        for connection in tuple(self._connections):
            connection.cut()
            connection.http.close()

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        """Provide a connection for one request."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = Connection(self._make())
            self._connections.add(connection)
        try:
            yield connection
        finally:
            if connection.was_cut:
                self._connections.discard(connection)
                connection.http.close()
            else:
                self._idle.append(connection)
