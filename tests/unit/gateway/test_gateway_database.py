"""Database of the gateway: addresses, revisions, and work that survives lost connections and locks."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from gateway_jobs import add_key, claim, create, run_of, until
from postgres_server import PostgresServer
from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from slipway_gateway.database import engine
from slipway_gateway.database.address import database_url
from slipway_gateway.database.changes import ChangeSignals
from slipway_gateway.database.engine import Database
from slipway_gateway.database.revisions import check_revision, prepare, upgrade
from slipway_gateway.database.tables import JobRow, KeyRow, Table
from slipway_gateway.jobs.job import Status
from slipway_gateway.jobs.store import JobStore
from slipway_serving.protocol.errors import InvalidRequest, NotReady

T = TypeVar("T")


def execute(url: str, statement: str) -> None:
    """Run one statement by a connection of its own."""
    connections = create_engine(database_url(url))
    with connections.begin() as connection:
        connection.execute(text(statement))
    connections.dispose()


@pytest.mark.parametrize("url", ["mysql://root:secret@host/x", "sqlite://", "sqlite:///:memory:", "jobs.db"])
def test_url_is_refused_without_its_password_when_it_names_no_supported_database(url: str) -> None:
    with pytest.raises(InvalidRequest, match="database must be") as refused:
        database_url(url)
    assert "secret" not in str(refused.value)


def test_database_is_refused_when_its_folder_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="folder that can be created"):
        Database(f"sqlite:///{tmp_path}/file/jobs.db")


def test_upgrade_makes_the_declared_tables_when_the_database_is_empty(jobs_url: str) -> None:
    upgrade(jobs_url)
    check_revision(jobs_url)
    connections = create_engine(database_url(jobs_url))
    with connections.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Table.metadata) == []
    connections.dispose()


def test_upgrade_succeeds_when_four_processes_do_it_at_once(jobs_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(upgrade, [jobs_url] * 4))
    check_revision(jobs_url)


def test_check_names_the_command_when_the_database_is_empty(postgres_url: str) -> None:
    with pytest.raises(NotReady, match="slipway gateway migrate --database postgresql://postgres@127"):
        prepare(postgres_url)


def test_upgrade_and_check_refuse_a_database_when_a_newer_version_changed_it(jobs_url: str) -> None:
    upgrade(jobs_url)
    execute(jobs_url, "UPDATE alembic_version SET version_num = '9999'")
    for action in (upgrade, check_revision):
        with pytest.raises(NotReady, match="revision 9999, which this version"):
            action(jobs_url)


def test_upgrade_says_so_when_the_server_does_not_answer() -> None:
    with pytest.raises(NotReady, match=r"postgresql://u:\*\*\*@127.0.0.1:1/x cannot be used"):
        upgrade("postgresql://u:secret@127.0.0.1:1/x")


def test_sqlite_is_in_wal_mode_and_private_when_it_is_new(tmp_path: Path) -> None:
    upgrade(f"sqlite:///{tmp_path}/data/jobs.db")
    with sqlite3.connect(tmp_path / "data" / "jobs.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "data" / "jobs.db").stat().st_mode & 0o777 == 0o600


async def test_write_waits_when_another_process_has_the_lock(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    upgrade(url)
    database = Database(url)
    other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    adding = asyncio.create_task(add_key(database, "anna"))

    def read(session: Session) -> list[str]:
        return list(session.scalars(select(KeyRow.id)))

    # A reader does not wait for the writer.
    assert await database.read(read) == []
    other.execute("COMMIT")
    await adding
    assert await database.read(read) == ["anna"]
    other.close()
    await database.close()


async def test_database_closes_when_a_write_was_cancelled_at_any_moment(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    upgrade(url)

    def work(session: Session, _: bool) -> int:
        return int(session.scalar(text("SELECT 1")) or 0)

    ends: list[int | BaseException] = []
    for number in range(300):
        database = Database(url)
        writing = asyncio.create_task(database.write(work))
        await asyncio.sleep(number / 40_000)
        writing.cancel()
        await asyncio.wait({writing, closing := asyncio.create_task(database.close())}, timeout=30)
        assert writing.done() and closing.done(), f"cancelled {number / 40} ms after the start"
        ends += await asyncio.gather(writing, return_exceptions=True)
    assert isinstance(ends[0], asyncio.CancelledError)
    assert all(end == 1 or isinstance(end, asyncio.CancelledError) for end in ends)


async def test_write_leaves_nothing_behind_when_its_work_fails(database: Database) -> None:
    def work(session: Session, _: bool) -> None:
        session.add(
            KeyRow(id="a", name="a", is_admin=False, priority="low", webhook_secret="whsec_a", created_at=0.0)
        )
        session.flush()
        raise ValueError("a fault of the work")

    with pytest.raises(ValueError, match="a fault of the work"):
        await database.write(work)

    def read(session: Session) -> list[str]:
        return list(session.scalars(select(KeyRow.id)))

    assert await database.read(read) == []


async def test_reads_and_writes_go_on_when_all_connections_were_cut(
    postgres: PostgresServer, postgres_url: str
) -> None:
    upgrade(postgres_url)
    database = Database(postgres_url)
    await add_key(database, "anna")
    store = JobStore(database)
    for _ in range(5):
        await asyncio.gather(*(create(store) for _ in range(4)))
        assert postgres.cut_connections(postgres_url) >= 1
    assert len(await store.positions()) == 20
    await database.close()


async def test_work_runs_again_when_its_connection_is_cut_in_the_middle(
    postgres: PostgresServer, postgres_url: str
) -> None:
    upgrade(postgres_url)
    database = Database(postgres_url)
    seen: list[bool] = []

    def work(session: Session, repeated: bool) -> int:
        session.execute(text("SELECT 1"))
        if not seen:
            postgres.cut_connections(postgres_url)
        seen.append(repeated)
        return int(session.scalar(text("SELECT 2")) or 0)

    assert await database.write(work) == 2
    assert seen == [False, True]
    await database.close()


async def test_every_job_completes_once_when_connections_are_cut_again_and_again(
    postgres: PostgresServer, postgres_url: str
) -> None:
    upgrade(postgres_url)
    database = Database(postgres_url)
    await add_key(database, "anna")
    store = JobStore(database)
    created = {(await create(store)).id for _ in range(50)}
    completed: list[str] = []
    calls = 0

    async def counted(call: Awaitable[T]) -> T:
        nonlocal calls
        result = await call
        calls += 1
        return result

    async def work() -> None:
        while True:
            job = await counted(store.claim("w", {"tiny_video": 1}, 600.0))
            if job is None:
                return
            run = run_of(job)
            await counted(store.report(job.id, run, step=5, steps=10, phase="denoising", preview=b"5"))
            await counted(store.state_saved(job.id, run, 5))
            done = await counted(store.complete(job.id, run, inference_time_s=1.0))
            completed.append(done.id)

    async def cut() -> None:
        """Cut all connections five times in the middle of the calls, fewer times than a call is tried."""
        for number in range(1, 6):
            while calls < 30 * number:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(postgres.cut_connections, postgres_url)

    await asyncio.gather(cut(), *(work() for _ in range(6)))
    assert sorted(completed) == sorted(created)
    counts = [(count.status, count.number) for count in await store.counts()]
    assert counts == [(Status.COMPLETED, 50)]
    await database.close()


async def test_claim_and_completion_are_found_again_when_the_answer_to_a_commit_was_lost(
    store: JobStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write is committed twice, as after a connection that was lost with the answer to the commit."""
    once = Database.write

    async def twice(self: Database, work: engine.WriteWork[object]) -> object:
        await once(self, work)

        def again(session: Session, _: bool) -> object:
            return work(session, True)

        return await once(self, again)

    await create(store)
    await create(store)
    monkeypatch.setattr(Database, "write", twice)
    job = await claim(store)
    counts = {count.status: count.number for count in await store.counts()}
    assert counts == {Status.QUEUED: 1, Status.IN_PROGRESS: 1}
    assert job.attempts == 1
    done = await store.complete(job.id, run_of(job), inference_time_s=2.0, stage_durations={"denoising": 1.5})
    assert (done.status, done.inference_time_s) == (Status.COMPLETED, 2.0)
    other = await claim(store)
    assert (await store.requeue(other.id, run_of(other))).status is Status.QUEUED
    third = await create(store)
    assert (await store.get(third.id, None)) is not None
    assert await store.remove(third.id)


async def test_write_says_not_ready_when_the_database_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_DELAYS_S", (0.01, 0.01))
    database = Database("postgresql://u:secret@127.0.0.1:1/x")
    with pytest.raises(NotReady, match="cannot be used now") as refused:
        await add_key(database, "anna")
    assert "secret" not in str(refused.value)
    await database.close()


async def test_read_raises_the_fault_itself_when_a_statement_is_wrong(database: Database) -> None:
    def work(session: Session) -> None:
        session.execute(text("SELECT nonsense"))

    with pytest.raises(DBAPIError, match="nonsense"):
        await database.read(work)


async def test_sqlite_says_not_ready_when_its_file_cannot_be_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    upgrade(url)
    database = Database(url)

    def work(session: Session, _: bool) -> None:
        session.execute(text("PRAGMA query_only = ON"))
        session.execute(text("DELETE FROM keys"))

    with pytest.raises(NotReady, match="cannot be used now"):
        await database.write(work)
    await database.close()


async def test_postgresql_ends_transactions_and_waits_when_a_process_stands_still(postgres_url: str) -> None:
    database = Database(postgres_url)

    def work(session: Session) -> list[object]:
        names = ("idle_in_transaction_session_timeout", "lock_timeout")
        return [session.scalar(text(f"SHOW {name}")) for name in names]

    assert await database.read(work) == ["30s", "30s"]
    await database.close()


async def test_signal_comes_when_another_connection_has_changed_a_job(
    postgres: PostgresServer, postgres_url: str
) -> None:
    upgrade(postgres_url)
    database, other = Database(postgres_url), Database(postgres_url)
    await add_key(other, "anna")
    async with ChangeSignals(database, interval_s=60.0) as signals:
        await signals.wait()  # the one that says that the connection listens
        for _ in range(2):
            waiting = asyncio.create_task(signals.wait())
            await create(JobStore(other))
            await asyncio.wait_for(waiting, 30)
            # After a cut, a signal comes as soon as the connection listens again.
            await asyncio.to_thread(postgres.cut_connections, postgres_url)
            await asyncio.wait_for(signals.wait(), 30)
    await database.close()
    await other.close()


async def test_signal_comes_at_once_when_this_process_has_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    upgrade(url)
    database = Database(url)
    async with ChangeSignals(database, interval_s=60.0) as signals:
        waiting = asyncio.create_task(signals.wait())
        await add_key(database, "anna")
        await asyncio.wait_for(waiting, 30)
    await database.close()


async def test_signal_comes_on_sqlite_only_when_another_process_has_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    upgrade(url)
    database, other = Database(url), Database(url)
    async with ChangeSignals(database, interval_s=0.01) as signals:
        for key in ("anna", "ben"):
            waiting = asyncio.create_task(signals.wait())
            assert not (await asyncio.wait({waiting}, timeout=0.2))[0]
            await add_key(other, key)
            await asyncio.wait_for(waiting, 30)
    await database.close()
    await other.close()


async def test_changes_are_complete_when_transactions_end_in_another_order(
    postgres_url: str,
) -> None:
    upgrade(postgres_url)
    database = Database(postgres_url)
    await add_key(database, "anna")
    store = JobStore(database)
    job, late = await create(store), await create(store)
    mark = (await store.changed_since(None)).mark
    written, finish = asyncio.Event(), asyncio.Event()

    def slowly(session: Session, _: bool) -> None:
        row = store._locked(session, JobRow.id == late.id)[0]
        store._change(session, row, phase="late")
        written.set()
        await_only(finish.wait())

    slow = asyncio.create_task(database.write(slowly))
    await written.wait()
    claimed = await claim(store)
    assert claimed.id == job.id
    first = await store.changed_since(mark)
    assert [changed.id for changed in first.jobs] == [job.id]
    finish.set()
    await slow
    second = await store.changed_since(first.mark)
    assert late.id in [changed.id for changed in second.jobs]

    async def nothing_is_left() -> bool:
        nonlocal second
        second = await store.changed_since(second.mark)
        return not second.jobs

    await until(nothing_is_left)
    await database.close()
