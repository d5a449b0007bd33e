"""PostgreSQL: connections of a pool, whose work runs in the event loop and waits for each statement."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from sqlalchemy import Executable, event
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from slipway_gateway.database.address import LOCK_WAIT_S, connect_arguments
from slipway_gateway.database.tables import Rows

T = TypeVar("T")


class PostgresConnections:
    """Connections to a server.

    Args:
        url: Address.
        connections: Number of connections that stay open.
    """

    def __init__(self, url: URL, connections: int) -> None:
        self._engine: AsyncEngine = create_async_engine(
            url,
            connect_args=connect_arguments(url),
            pool_size=connections,
            max_overflow=0,
            pool_timeout=LOCK_WAIT_S,
            # No test of a connection before its use: that would take as long as most work, and work is
            # repeated after a lost connection anyway.
            pool_pre_ping=False,
        )
        event.listen(self._engine.sync_engine, "connect", lambda connection, _: _prepare(connection))
        # Each statement of a reader is a transaction of its own, which saves round trips.
        self._reading = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    async def read(self, work: Callable[[Session], T]) -> T:
        """Run work that only reads. Each of its statements sees the newest data."""
        async with AsyncSession(self._reading, expire_on_commit=False) as session:
            return await session.run_sync(work)

    async def select(self, statement: Executable, values: Mapping[str, Any] | None) -> Rows:
        """Return the rows of one statement."""
        async with self._reading.connect() as connection:
            return (await connection.execute(statement, values)).all()

    async def write(self, work: Callable[[Session], T]) -> T:
        """Run work in a transaction that writes, and commit it."""
        async with AsyncSession(self._engine, expire_on_commit=False) as session, session.begin():
            return await session.run_sync(work)

    def wait_in_work(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop and return its result; only for work."""
        return await_only(coroutine)

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()


def _prepare(connection: Any) -> None:
    """Set up a new connection, so that a process that stands still does not block others."""
    cursor = connection.cursor()
    for setting in ("idle_in_transaction_session_timeout", "lock_timeout"):
        cursor.execute(f"SET {setting} = '{LOCK_WAIT_S}s'")
    cursor.close()
    connection.commit()
