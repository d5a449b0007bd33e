"""Connections to the gateway's database: SQLite in a file, or PostgreSQL.

Work is a function of a session. :meth:`Database.read` and :meth:`Database.write` run it in one transaction
and repeat it after a lost connection, so it must be safe to repeat: a repeated write is told that an earlier
try may have been committed. On SQLite, writes of one process take turns and wait for those of other
processes; readers never wait, since the file is in WAL mode.

:meth:`Database.select` runs one statement, for what is read many times a second. A session, and a driver that
hands each step of a statement to a thread, take several times its processor time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Executable, Row, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from slipway_serving.protocol.errors import InvalidRequest, NotReady, Overloaded, without_traceback

T = TypeVar("T")
ReadWork = Callable[[AsyncSession], Awaitable[T]]
Rows = Sequence[Row[*tuple[Any, ...]]]
WriteWork = Callable[[AsyncSession, bool], Awaitable[T]]

CHANNEL = "slipway_jobs"
"""Channel of PostgreSQL's NOTIFY; the payload is the identifier of the changed job."""
_LOG = logging.getLogger(__name__)
_DELAYS_S = (0.05, 0.2, 0.5, 1.0, 2.0)
_LOCK_WAIT_S = 30
# Threads that read SQLite. A read takes less than a millisecond, and Python runs one thread at a time anyway.
_READERS = 2
_POSTGRES = {"postgres", "postgresql", "postgresql+psycopg"}
_SQLITE = {"sqlite", "sqlite+aiosqlite"}
# Serialization failure and deadlock: the transaction was rolled back and can run again.
_REPEATABLE_STATES = {"40001", "40P01"}
# Primary codes of SQLite for a file that cannot be used now: busy, locked, read-only, I/O error, full, cannot
# open. A wrong statement has another code, but the same class.
_SQLITE_CODES = {5, 6, 8, 10, 13, 14}


def database_url(text: str) -> URL:
    """Parse the address of a database.

    Args:
        text: ``sqlite:///path`` or ``postgresql://user:password@host/name``.

    Raises:
        InvalidRequest: It is neither; the message does not contain a password.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        url = None
    rule = "database must be sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
    if url is None:
        raise InvalidRequest(f"gateway: {rule}, got a text that is no URL; try sqlite:///gateway/jobs.db")
    if url.drivername in _POSTGRES:
        return url.set(drivername="postgresql+psycopg")
    shown = url.render_as_string(hide_password=True)
    if url.drivername not in _SQLITE:
        raise InvalidRequest(f"gateway: {rule}, got {shown}; try sqlite:///gateway/jobs.db")
    if not url.database or url.database == ":memory:":
        raise InvalidRequest(
            f"gateway: database must be a file that several connections share, got {shown}; try"
            " sqlite:///gateway/jobs.db"
        )
    return url.set(drivername="sqlite+aiosqlite")


def connect_arguments(url: URL) -> dict[str, Any]:
    """Return the driver's arguments for a database."""
    if url.get_backend_name() == "sqlite":
        return {"timeout": _LOCK_WAIT_S}
    arguments: dict[str, Any] = {
        # Connection poolers mix up statements that were prepared on the server.
        "prepare_threshold": None,
        # Without keepalives, a connection to a machine that has vanished stays open for hours.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    given = {"connect_timeout": 5, "application_name": "slipway-gateway"}
    return arguments | {name: value for name, value in given.items() if name not in url.query}


def prepare_sqlite(connection: Any) -> None:
    """Set up a new connection of SQLite: WAL, durable commits, and transactions that we begin ourselves."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def prepare_postgres(connection: Any) -> None:
    """Set up a new connection of PostgreSQL, so that a process that stands still does not block others."""
    cursor = connection.cursor()
    for setting in ("idle_in_transaction_session_timeout", "lock_timeout"):
        cursor.execute(f"SET {setting} = '{_LOCK_WAIT_S}s'")
    cursor.close()
    connection.commit()


class Database:
    """Database of the gateway.

    Args:
        url: ``sqlite:///path`` or ``postgresql://…``.
        connections: Number of connections that this process keeps open.

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
        self._writes = asyncio.Lock()
        if not self.is_postgres:
            make_file(self.url)
        self._engine: AsyncEngine = create_async_engine(
            self.url,
            connect_args=connect_arguments(self.url),
            pool_size=connections,
            max_overflow=0,
            pool_timeout=_LOCK_WAIT_S,
            # No test of a connection before its use: that would take as long as most work, and work is
            # repeated after a lost connection anyway.
            pool_pre_ping=False,
        )
        prepare = prepare_postgres if self.is_postgres else prepare_sqlite
        event.listen(self._engine.sync_engine, "connect", lambda connection, _: prepare(connection))
        if not self.is_postgres:
            event.listen(self._engine.sync_engine, "begin", _begin)
        # Each statement of a reader is a transaction of its own, which saves round trips: to the server of
        # PostgreSQL, or to the thread that calls SQLite, where nothing begins a transaction but `_begin`.
        self._reading = (
            self._engine.execution_options(isolation_level="AUTOCOMMIT") if self.is_postgres else self._engine
        )
        self._writing = self._engine.execution_options(slipway_writes=True)
        self._selecting = None if self.is_postgres else _SqliteReaders(self.url)

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
            Overloaded: Every connection of this process is in use.
        """

        async def once(_: bool) -> T:
            async with AsyncSession(self._reading, expire_on_commit=False) as session:
                return await work(session)

        return await self._repeating(once)

    async def select(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Rows:
        """Run one statement that only reads, and return its rows.

        Args:
            statement: Statement with columns of tables. One that lives as long as the process is compiled
                once; its values are given as `bindparam`.
            values: Values of its parameters by name.

        Raises:
            NotReady: The database cannot be reached, after a few tries.
            Overloaded: Every connection of this process is in use.
        """

        async def once(_: bool) -> Rows:
            if self._selecting is not None:
                return await self._selecting.select(statement, values)
            async with self._reading.connect() as connection:
                return (await connection.execute(statement, values)).all()

        return await self._repeating(once)

    async def write(self, work: WriteWork[T]) -> T:
        """Run work in a transaction that writes, and commit it.

        Args:
            work: Function of a session and of a flag. The flag is True if an earlier try lost its connection,
                perhaps after its commit.

        Raises:
            NotReady: The database cannot be reached or written, after a few tries.
            Overloaded: Every connection of this process is in use.
        """

        async def once(repeated: bool) -> T:
            async with AsyncSession(self._writing, expire_on_commit=False) as session, session.begin():
                return await work(session, repeated)

        if self.is_postgres:
            result = await self._repeating(once)
        else:
            async with self._writes:
                result = await self._repeating(once)
        for listener in tuple(self._listeners):
            listener()
        return result

    async def check(self) -> None:
        """Check that the database answers.

        Raises:
            NotReady: It does not.
        """
        await self.read(lambda session: session.execute(text("SELECT 1")))

    async def close(self) -> None:
        """Close all connections."""
        if self._selecting is not None:
            self._selecting.close()
        await self._engine.dispose()

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


class _SqliteReaders:
    """Threads that read SQLite, a whole statement at a time.

    Args:
        url: Address of the file.
    """

    def __init__(self, url: URL) -> None:
        self._engine: Engine = create_engine(
            url.set(drivername="sqlite"),
            connect_args=connect_arguments(url),
            pool_size=_READERS,
            max_overflow=0,
        )
        event.listen(self._engine, "connect", lambda connection, _: prepare_sqlite(connection))
        self._threads = ThreadPoolExecutor(_READERS, "select")

    async def select(self, statement: Executable, values: Mapping[str, Any] | None) -> Rows:
        """Run a statement in a thread and return its rows."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._rows, statement, values)

    def close(self) -> None:
        """Close all connections, after the reads that have begun."""
        self._threads.shutdown()
        self._engine.dispose()

    def _rows(self, statement: Executable, values: Mapping[str, Any] | None) -> Rows:
        with self._engine.connect() as connection:
            return connection.execute(statement, values).all()


def make_file(url: URL) -> None:
    """Create an SQLite file and its folder, which only their owner may read.

    Raises:
        InvalidRequest: The folder cannot be created.
    """
    file = Path(url.database or "")
    folder = file.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite gives its other files the permissions of this one.
        file.touch(mode=0o600)
    except OSError as error:
        raise InvalidRequest(
            f"gateway: database must be in a folder that can be created, got {folder} ({error.strerror}); try"
            " another folder"
        ) from None


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get("slipway_writes"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


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
