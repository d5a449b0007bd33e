"""Upkeep: expired and deleted jobs, contents without a job, the quota, and lapsed leases."""

from __future__ import annotations

import asyncio

import pytest
from gateway_jobs import LEASE_S, Clock, claim, create, run_of, until
from sqlalchemy import select
from sqlalchemy.orm import Session

from slipway_gateway.database.engine import Database
from slipway_gateway.database.tables import Delivery
from slipway_gateway.jobs.job import Job, Status, Wish
from slipway_gateway.jobs.store import JobStore
from slipway_gateway.jobs.upkeep import Upkeep
from slipway_serving.protocol.errors import NotReady


class MemoryContents:
    """Contents of jobs in memory: size and time of each."""

    def __init__(self) -> None:
        self.stored: dict[str, tuple[int, float]] = {}
        self.fails = False

    async def delete(self, job_id: str, *names: str) -> None:
        if self.fails:
            raise NotReady("contents: the store cannot be written")
        self.stored.pop(job_id, None)

    async def jobs(self) -> dict[str, tuple[int, float]]:
        return dict(self.stored)


@pytest.fixture
def contents() -> MemoryContents:
    return MemoryContents()


async def completed(store: JobStore, contents: MemoryContents, clock: Clock, size: int = 10) -> Job:
    """A completed job with contents."""
    await create(store)
    job = await claim(store)
    contents.stored[job.id] = size, clock.now
    return await store.complete(job.id, run_of(job), inference_time_s=1.0)


async def add_delivery(database: Database, name: str, created_at: float, next_at: float | None) -> None:
    def work(session: Session, _: bool) -> None:
        row = Delivery(
            id=name,
            job_id="video_x",
            owner="anna",
            url="https://example.com",
            event="video.failed",
            payload={},
            created_at=created_at,
            next_at=next_at,
        )
        session.add(row)

    await database.write(work)


async def test_jobs_and_contents_go_when_they_have_expired(
    store: JobStore, contents: MemoryContents, clock: Clock
) -> None:
    expired = await completed(store, contents, clock)
    paused = await create(store)
    await store.ask(paused.id, "anna", Wish.PAUSE)
    clock.now += 500
    kept = await completed(store, contents, clock)
    queued = await create(store)
    clock.now += 500
    await Upkeep(store, contents, clock=clock).clean()
    assert await store.ids() == {kept.id, queued.id}
    assert set(contents.stored) == {kept.id}
    assert expired.id not in contents.stored


async def test_deletion_goes_on_when_a_round_was_interrupted(
    store: JobStore, contents: MemoryContents, clock: Clock
) -> None:
    job = await completed(store, contents, clock)
    await store.ask(job.id, "anna", Wish.DELETE)
    upkeep = Upkeep(store, contents, clock=clock)
    contents.fails = True
    for _ in range(2):
        with pytest.raises(NotReady):
            await upkeep.clean()
    assert await store.ids() == {job.id}
    assert await store.get(job.id, "anna") is None
    contents.fails = False
    await upkeep.clean()
    assert (await store.ids(), contents.stored) == (set(), {})


async def test_contents_without_a_job_go_when_they_are_old(
    store: JobStore, contents: MemoryContents, clock: Clock
) -> None:
    job = await completed(store, contents, clock)
    contents.stored["video_old"] = 1, clock.now - 3601
    contents.stored["video_new"] = 1, clock.now - 3599
    await Upkeep(store, contents, clock=clock).clean()
    assert set(contents.stored) == {job.id, "video_new"}


async def test_jobs_that_ended_first_go_when_contents_take_more_than_the_quota(
    store: JobStore, contents: MemoryContents, clock: Clock
) -> None:
    jobs = []
    for _ in range(3):
        clock.now += 1
        jobs.append(await completed(store, contents, clock))
    running = await create(store)
    await claim(store)
    contents.stored[running.id] = 100, clock.now
    await Upkeep(store, contents, clock=clock, quota_bytes=120).clean()
    assert set(contents.stored) == {jobs[1].id, jobs[2].id, running.id}
    # What runs is never deleted, so the quota may stay exceeded.
    await Upkeep(store, contents, clock=clock, quota_bytes=1).clean()
    assert set(contents.stored) == {running.id} == await store.ids()


async def test_webhooks_go_when_they_ended_a_week_ago(
    store: JobStore, database: Database, contents: MemoryContents, clock: Clock
) -> None:
    for number, next_at in enumerate((None, None, clock.now)):
        await add_delivery(database, str(number), clock.now - 700_000 * (number != 1), next_at)
    await Upkeep(store, contents, clock=clock).clean()

    def work(session: Session) -> list[str]:
        return list(session.scalars(select(Delivery.id).order_by(Delivery.id)))

    assert await database.read(work) == ["1", "2"]


async def test_upkeep_takes_back_lapsed_jobs_and_goes_on_when_a_round_fails(
    store: JobStore, contents: MemoryContents, clock: Clock
) -> None:
    job = await completed(store, contents, clock)
    await store.ask(job.id, "anna", Wish.DELETE)
    lapsing = await create(store)
    await claim(store)
    clock.now += LEASE_S + 1
    contents.fails = True
    rounds = asyncio.create_task(
        Upkeep(store, contents, max_attempts=1, clock=clock).run(
            lease_interval_s=0.01, contents_interval_s=0.0
        )
    )

    async def has_failed() -> bool:
        found = await store.get(lapsing.id, None)
        return found is not None and found.status is Status.FAILED

    await until(has_failed)
    contents.fails = False

    async def is_removed() -> bool:
        return await store.ids() == {lapsing.id}

    await until(is_removed)
    rounds.cancel()
