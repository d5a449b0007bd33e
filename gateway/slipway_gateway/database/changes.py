"""Signals that jobs have changed, from this process and from others.

A signal says only that something changed; the log of changes says what. On SQLite there is none from other
processes, so the wait ends after a short interval. On PostgreSQL a connection of its own listens, and the
interval is longer: it bounds the delay while that connection is being restored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import TracebackType
from typing import Self

import psycopg
from sqlalchemy.engine import URL

from slipway_gateway.database.engine import CHANNEL, Database, connect_arguments

_LOG = logging.getLogger(__name__)
SQLITE_INTERVAL_S = 0.25
POSTGRES_INTERVAL_S = 2.0
_RECONNECT_S = 0.5
_CONNECTION_CHECK_S = 30.0


class ChangeSignals:
    """Signals of changes, for one reader.

    It is an asynchronous context manager, and gives signals within it.

    Args:
        database: Database whose changes are signalled.
        interval_s: Longest wait for a signal, in seconds; by default that of the kind of database.
    """

    def __init__(self, database: Database, *, interval_s: float | None = None) -> None:
        default = POSTGRES_INTERVAL_S if database.is_postgres else SQLITE_INTERVAL_S
        self._database = database
        self._interval_s = default if interval_s is None else interval_s
        self._given = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._database.is_postgres:
            listening = asyncio.create_task(self._listen(), name="listen for changes of jobs")
            self._stack.push_async_callback(_stop, listening)
        else:
            # Writes of this process are signalled at once; on PostgreSQL they come as notifications.
            self._stack.callback(self._database.on_write(self._given.set))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def wait(self) -> None:
        """Wait for a signal since the wait before, or for the end of the interval."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._interval_s):
                await self._given.wait()
        self._given.clear()

    async def _listen(self) -> None:
        """Turn notifications into signals; connect again whenever the connection is lost."""
        while True:
            try:
                await self._listen_once()
            except (psycopg.Error, OSError) as error:
                _LOG.warning("database: the connection for notifications was lost (%s)", _first_line(error))
            await asyncio.sleep(_RECONNECT_S)

    async def _listen_once(self) -> None:
        url = self._database.url
        connection = await psycopg.AsyncConnection.connect(
            _conninfo(url), autocommit=True, **connect_arguments(url)
        )
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            # Something may have changed before the connection was there.
            self._given.set()
            while True:
                async for _ in connection.notifies(timeout=_CONNECTION_CHECK_S):
                    self._given.set()
                await connection.execute("SELECT 1")


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _conninfo(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
