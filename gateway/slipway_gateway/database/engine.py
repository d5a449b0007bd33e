"""Connections to the gateway's database: SQLite in a file, or PostgreSQL.

Work is a function of a session. :meth:`Database.read` and :meth:`Database.write` run it in one transaction
and repeat it after a lost connection, so it must be safe to repeat: a repeated write is told that an earlier
try may have been committed. On SQLite it runs in a thread, so it must use nothing that the event loop
changes. On PostgreSQL it runs in the event loop, where each statement lets other tasks run.

:meth:`Database.select` runs one statement without a session, for what is read many times a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from sqlalchemy import Executable, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from slipway_gateway.database.address import database_url
from slipway_gateway.database.postgres import PostgresConnections
from slipway_gateway.database.sqlite import SqliteThreads
from slipway_gateway.database.tables import Rows
from slipway_serving.protocol.errors import NotReady, Overloaded, without_traceback

T = TypeVar("T")
ReadWork = Callable[[Session], T]
WriteWork = Callable[[Session, bool], T]

CHANNEL = "slipway_jobs"
"""Channel of PostgreSQL's NOTIFY; the payload is the identifier of the changed job."""
_LOG = logging.getLogger(__name__)
_DELAYS_S = (0.05, 0.2, 0.5, 1.0, 2.0)
# Serialization failure and deadlock: the transaction was rolled back and can run again.
_REPEATABLE_STATES = {"40001", "40P01"}
# Primary codes of SQLite for a file that cannot be used now: busy, locked, read-only, I/O error, full, cannot
# open. A wrong statement has another code, but the same class.
_SQLITE_CODES = {5, 6, 8, 10, 13, 14}


class Database:
    """Database of the gateway.

    Args:
        url: ``sqlite:///path`` or ``postgresql://…``.
        connections: Number of connections to PostgreSQL that this process keeps open.

    Raises:
        InvalidRequest: The URL names no database that the gateway supports, or the file's folder cannot be
            created.

    Attributes:
        url: Parsed address.
        is_postgres: True for PostgreSQL, False for SQLite.
    """

    def __init__(self, url: str, *, connections: int = 10) -> None:
        self.url = database_url(url)
        self.is_postgres = self.url.get_backend_name() == "postgresql"
        self._listeners: list[Callable[[], None]] = []
        self._connections = (
            PostgresConnections(self.url, connections) if self.is_postgres else SqliteThreads(self.url)
        )

    @property
    def name(self) -> str:
        """Address without the password, for messages."""
        return self.url.render_as_string(hide_password=True)

    def on_write(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function after each write of this process; return the function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def read(self, work: ReadWork[T]) -> T:
        """Run work that only reads. Each of its statements sees the newest data.

        Raises:
            NotReady: The database cannot be reached, after a few tries.
            Overloaded: Every connection of this process to PostgreSQL is in use.
        """
        return await self._repeating(lambda _: self._connections.read(work))

    async def select(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Rows:
        """Run one statement that only reads, and return its rows.

        Args:
            statement: Statement with columns of tables. One that lives as long as the process is compiled
                once; its values are given as `bindparam`.
            values: Values of its parameters by name.

        Raises:
            NotReady: The database cannot be reached, after a few tries.
            Overloaded: Every connection of this process to PostgreSQL is in use.
        """
        return await self._repeating(lambda _: self._connections.select(statement, values))

    async def write(self, work: WriteWork[T]) -> T:
        """Run work in a transaction that writes, and commit it.

        Args:
            work: Function of a session and of a flag. The flag is True if an earlier try lost its connection,
                perhaps after its commit.

        Raises:
            NotReady: The database cannot be reached or written, after a few tries.
            Overloaded: Every connection of this process to PostgreSQL is in use.
        """
        result = await self._repeating(
            lambda repeated: self._connections.write(lambda session: work(session, repeated))
        )
        for listener in tuple(self._listeners):
            listener()
        return result

    def wait_in_work(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop and return its result; only for work, whose transaction waits.

        The coroutine must not use the database: its connection may be the one that waits.
        """
        return self._connections.wait_in_work(coroutine)

    async def check(self) -> None:
        """Check that the database answers.

        Raises:
            NotReady: It does not.
        """
        await self.read(lambda session: session.scalar(text("SELECT 1")))

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def _repeating(self, once: Callable[[bool], Awaitable[T]]) -> T:
        """Run one try after another until one succeeds or the delays are used up."""
        for number, delay_s in enumerate((*_DELAYS_S, None)):
            try:
                return await once(number > 0)
            except PoolTimeout:
                raise Overloaded(
                    "database: every connection of this gateway is in use; try again in a few seconds"
                ) from None
            except DBAPIError as error:
                if not _is_repeatable(error):
                    raise
                reason = _reason(error)
                without_traceback(error)
            if delay_s is None or not self.is_postgres:
                break
            _LOG.warning("database: try %d failed (%s)", number + 1, reason)
            await asyncio.sleep(delay_s)
        _LOG.error("database: %s cannot be used: %s", self.name, reason)
        raise NotReady("database: it cannot be used now; try again in a few seconds")


def _is_repeatable(error: DBAPIError) -> bool:
    """Return whether the connection or the transaction failed, and not the statement."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE_CODES
    if error.connection_invalidated or isinstance(error, OperationalError | InterfaceError):
        return True
    return getattr(error.orig, "sqlstate", None) in _REPEATABLE_STATES


def _reason(error: DBAPIError) -> str:
    """Return the first line of the driver's message; the statement and its values stay out of the log."""
    return str(error.orig).strip().partition("\n")[0] or type(error.orig).__name__
