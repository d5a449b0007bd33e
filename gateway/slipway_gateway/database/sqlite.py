"""SQLite in a file: how its connections are set up, and the threads that use them.

Work runs as a whole in one thread. A driver that hands each step of a statement to a thread takes several
times the processor time, and a task that is cancelled leaves its connection in the middle of a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Executable, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.orm import Session

from slipway_gateway.database.address import connect_arguments
from slipway_gateway.database.tables import Rows
from slipway_serving.protocol.errors import InvalidRequest

T = TypeVar("T")

# A read takes about a millisecond, and Python runs one thread at a time anyway.
_READERS = 2


class SqliteThreads:
    """Connections to one file, each of which has a thread.

    All writes have one thread, so those of one process take turns. Readers never wait for it, since the file
    is in WAL mode. A task that is cancelled does not wait any longer; its work is done whole, unless it had
    not begun.

    Args:
        url: Address of the file.

    Raises:
        InvalidRequest: The folder of the file cannot be created.
    """

    def __init__(self, url: URL) -> None:
        make_file(url)
        self._readers, self._writer = _engine(url, _READERS), _engine(url, 1)
        event.listen(self._writer, "begin", begin_write)
        self._reading, self._writing = ThreadPoolExecutor(_READERS, "read"), ThreadPoolExecutor(1, "write")
        self._loop: asyncio.AbstractEventLoop

    async def read(self, work: Callable[[Session], T]) -> T:
        """Run work that only reads. Each of its statements sees the newest data."""

        def run() -> T:
            with Session(self._readers, expire_on_commit=False) as session:
                return work(session)

        return await asyncio.get_running_loop().run_in_executor(self._reading, run)

    async def select(self, statement: Executable, values: Mapping[str, Any] | None) -> Rows:
        """Return the rows of one statement."""

        def run() -> Rows:
            with self._readers.connect() as connection:
                return connection.execute(statement, values).all()

        return await asyncio.get_running_loop().run_in_executor(self._reading, run)

    async def write(self, work: Callable[[Session], T]) -> T:
        """Run work in a transaction that writes, after the writes that were asked for before; commit it."""

        def run() -> T:
            with Session(self._writer, expire_on_commit=False) as session, session.begin():
                return work(session)

        self._loop = asyncio.get_running_loop()
        return await self._loop.run_in_executor(self._writing, run)

    def wait_in_work(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop and return its result; only for work that writes."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def close(self) -> None:
        """Close all connections, after the work that was asked for before."""
        for threads, engine in ((self._reading, self._readers), (self._writing, self._writer)):
            await asyncio.to_thread(threads.shutdown)
            engine.dispose()


def prepare_sqlite(connection: Any) -> None:
    """Set up a new connection: WAL, durable commits, and transactions that we begin ourselves."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def begin_write(connection: Connection) -> None:
    """Begin a transaction with the lock of the writer; one that took it later could only fail."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


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


def _engine(url: URL, connections: int) -> Engine:
    engine = create_engine(url, connect_args=connect_arguments(url), pool_size=connections, max_overflow=0)
    event.listen(engine, "connect", lambda connection, _: prepare_sqlite(connection))
    return engine
