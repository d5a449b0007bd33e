"""Fixtures of the gateway's tests: each test runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from gateway_jobs import Clock, add_key
from postgres_server import MISSING, PostgresServer, postgres_server, programs

from slipway_gateway.access.keys import KeyStore
from slipway_gateway.database.engine import Database
from slipway_gateway.database.revisions import upgrade
from slipway_gateway.jobs.store import JobStore


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A private PostgreSQL server."""
    if programs() is None:
        pytest.skip(MISSING)
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """The address of an empty database on PostgreSQL."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
def jobs_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def database(jobs_url: str) -> AsyncIterator[Database]:
    """A database with all tables."""
    upgrade(jobs_url)
    opened = Database(jobs_url)
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> Clock:
    """A clock that a test sets."""
    return Clock()


@pytest.fixture
async def store(database: Database, clock: Clock) -> JobStore:
    """An empty store of jobs with the keys "anna" and "ben"."""
    for key_id in ("anna", "ben"):
        await add_key(database, key_id)
    return JobStore(database, keep_s=1000.0, clock=clock)


@pytest.fixture
def keys(database: Database, clock: Clock) -> KeyStore:
    """A store of keys."""
    return KeyStore(database, clock=clock)
