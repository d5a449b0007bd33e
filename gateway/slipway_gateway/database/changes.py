"""Signals that jobs have changed, from this process and from others.

A signal says only that something changed; the log of changes says what. SQLite has none for other processes,
but it counts their commits, and that number is looked at every quarter of a second. On PostgreSQL a
connection of its own listens, and the wait ends after an interval in any case, which bounds the delay while
that connection is being restored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from types import TracebackType
from typing import Self

import psycopg
from sqlalchemy.engine import URL

from slipway_gateway.database.address import connect_arguments
from slipway_gateway.database.engine import CHANNEL, Database

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
        interval_s: Time between two looks at what other processes have committed, in seconds; by default that
            of the kind of database.
    """

    def __init__(self, database: Database, *, interval_s: float | None = None) -> None:
        default = POSTGRES_INTERVAL_S if database.is_postgres else SQLITE_INTERVAL_S
        self._database = database
        self._interval_s = default if interval_s is None else interval_s
        self._given = asyncio.Event()
        self._commits: _Commits | None = None
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._database.is_postgres:
            listening = asyncio.create_task(self._listen(), name="listen for changes of jobs")
            self._stack.push_async_callback(_stop, listening)
        else:
            self._commits = self._stack.enter_context(contextlib.closing(_Commits(self._database)))
            # Writes of this process are signalled at once; on PostgreSQL they come as notifications.
            self._stack.callback(self._database.on_write(self._given.set))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def wait(self) -> None:
        """Wait for a signal since the wait before; on PostgreSQL, at most for the interval."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._given.wait()
            is_given = self._given.is_set()
            self._given.clear()
            if self._commits is None or self._commits.have_changed() or is_given:
                return

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


class _Commits:
    """Number that SQLite changes with every commit of another connection (`PRAGMA data_version`).

    It is read from shared memory in microseconds, where a query of a pooled connection takes milliseconds.
    """

    def __init__(self, database: Database) -> None:
        self._connection = sqlite3.connect(str(database.url.database), isolation_level=None)
        self._number = self._read()

    def have_changed(self) -> bool:
        """Return whether another connection has committed since the call before."""
        before, self._number = self._number, self._read()
        return self._number is None or self._number != before

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _read(self) -> int | None:
        """Return the number, or None if the file cannot be read now."""
        try:
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return None


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _conninfo(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
