"""Feed of changed jobs: one reader for all watchers, no lost change, and waits of workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway_jobs import add_key, claim, create, run_of, until

from slipway_gateway.access.limits import UNLIMITED
from slipway_gateway.database.changes import ChangeSignals
from slipway_gateway.database.engine import Database
from slipway_gateway.jobs.feed import JobFeed
from slipway_gateway.jobs.job import Changes, Job, Place, Status, Wish
from slipway_gateway.jobs.store import JobStore
from slipway_serving.protocol.errors import NotReady


class CountingStore(JobStore):
    """A store that counts the reads of its feed and can be made to fail."""

    polls = 0
    reads_of_positions = 0
    fails = False

    async def changed_since(self, mark: int | None) -> Changes:
        self.polls += 1
        if self.fails:
            raise NotReady("database: it cannot be used now")
        return await super().changed_since(mark)

    async def positions(self) -> dict[str, int]:
        self.reads_of_positions += 1
        return await super().positions()


class SlowStore(JobStore):
    """A store whose positions are read before a test goes on, and answered after it."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.has_read, self.may_answer = asyncio.Event(), asyncio.Event()

    async def positions(self) -> dict[str, int]:
        found = await super().positions()
        self.has_read.set()
        await self.may_answer.wait()
        return found


class ManualSignals:
    """Signals that a test gives."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[None] = asyncio.Queue()

    async def wait(self) -> None:
        await self.queue.get()

    def give(self) -> None:
        self.queue.put_nowait(None)


@asynccontextmanager
async def feed_of(database: Database) -> AsyncIterator[JobFeed]:
    async with (
        ChangeSignals(database, interval_s=0.05) as signals,
        JobFeed(JobStore(database), signals, gather_s=0.0) as feed,
    ):
        yield feed


async def watched(feed: JobFeed, job_id: str, seen: list[Job]) -> None:
    async for job in feed.watch(job_id):
        seen.append(job)


async def sees(seen: list[Job], status: Status, step: int = 0) -> None:
    async def condition() -> bool:
        return bool(seen) and (seen[-1].status, seen[-1].step) == (status, step)

    await until(condition)


async def test_watcher_sees_each_status_until_the_end(store: JobStore, database: Database) -> None:
    job = await create(store)
    seen: list[Job] = []
    async with feed_of(database) as feed:
        watching = asyncio.create_task(watched(feed, job.id, seen))
        await sees(seen, Status.QUEUED)
        run = run_of(await claim(store))
        await sees(seen, Status.IN_PROGRESS)
        await store.report(job.id, run, step=4, steps=10, phase="denoising")
        await sees(seen, Status.IN_PROGRESS, 4)
        await store.complete(job.id, run, inference_time_s=1.0)
        await asyncio.wait_for(watching, 30)
    assert seen[-1].status is Status.COMPLETED
    versions = [job.version for job in seen]
    assert versions == sorted(set(versions))


async def test_watch_ends_when_the_job_is_deleted_removed_over_or_unknown(
    store: JobStore, database: Database
) -> None:
    deleted, removed, over = [await create(store) for _ in range(3)]
    await store.ask(over.id, "anna", Wish.CANCEL)
    async with feed_of(database) as feed:
        seen: dict[str, list[Job]] = {name: [] for name in (deleted.id, removed.id, over.id, "video_x")}
        tasks = [asyncio.create_task(watched(feed, job_id, jobs)) for job_id, jobs in seen.items()]
        await sees(seen[deleted.id], Status.QUEUED)
        await sees(seen[removed.id], Status.QUEUED)
        await store.ask(deleted.id, "anna", Wish.DELETE)
        await store.remove(removed.id)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert [len(jobs) for jobs in seen.values()] == [1, 1, 1, 0]


async def test_watchers_cause_one_read_for_each_signal_when_there_are_200(database: Database) -> None:
    setup = JobStore(database)
    await add_key(database, "anna")
    jobs = [await create(setup) for _ in range(4)]
    store, signals = CountingStore(database), ManualSignals()
    async with JobFeed(store, signals, gather_s=0.0) as feed:
        seen: list[list[Job]] = [[] for _ in range(200)]
        tasks = [
            asyncio.create_task(watched(feed, jobs[number % 4].id, own)) for number, own in enumerate(seen)
        ]

        async def all_see_first() -> bool:
            return all(seen)

        await until(all_see_first)
        assert store.polls == 1
        claimed = [await claim(setup) for _ in range(4)]
        signals.give()

        async def all_see(status: Status) -> bool:
            return all(own[-1].status is status for own in seen)

        await until(lambda: all_see(Status.IN_PROGRESS))
        assert store.polls == 2
        for job in claimed:
            await setup.cancel(job.id, run_of(job))
        signals.give()
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        assert await all_see(Status.CANCELLED)
    assert store.polls == 3


async def test_feed_goes_on_from_its_mark_when_reads_have_failed(database: Database, store: JobStore) -> None:
    job = await create(store)
    counting, signals, seen = CountingStore(database), ManualSignals(), list[Job]()
    async with JobFeed(counting, signals, gather_s=0.0) as feed:
        watching = asyncio.create_task(watched(feed, job.id, seen))
        await sees(seen, Status.QUEUED)
        counting.fails = True
        await store.ask(job.id, "anna", Wish.CANCEL)
        signals.give()

        async def has_failed() -> bool:
            return counting.polls == 2

        await until(has_failed)
        counting.fails = False
        signals.give()
        await asyncio.wait_for(watching, 30)
    assert seen[-1].status is Status.CANCELLED


async def test_worker_is_woken_when_a_job_can_start(store: JobStore, database: Database) -> None:
    async with feed_of(database) as feed:
        seen = feed.queued.count
        assert not await feed.queued.after(seen, 0.0)
        waiting = asyncio.create_task(feed.queued.after(seen, 30.0))
        job = await create(store)
        assert await waiting
        # A job that came between the claim and the wait is not missed.
        assert await feed.queued.after(seen, 0.0)
        await claim(store)
        await store.ask(job.id, "anna", Wish.PAUSE)


async def test_end_of_a_job_is_signalled_and_its_progress_is_not(store: JobStore, database: Database) -> None:
    async with feed_of(database) as feed:
        job = await create(store)
        seen = feed.ended.count
        run = run_of(await claim(store))
        await store.report(job.id, run, step=1, steps=2, phase="denoise")
        async for news in feed.watch(job.id):
            if news.step == 1:
                break
        assert not await feed.ended.after(seen, 0.0)
        await store.complete(job.id, run, inference_time_s=1.0)
        assert await feed.ended.after(seen, 30.0)


async def test_positions_are_read_again_only_when_the_queue_has_changed(
    database: Database, store: JobStore
) -> None:
    first, second = await create(store), await create(store)
    counting, signals = CountingStore(database), ManualSignals()
    async with JobFeed(counting, signals, gather_s=0.0) as feed:
        for _ in range(3):
            assert await feed.position(first.id) == 1
            assert await feed.position(second.id) == 2
        assert counting.reads_of_positions == 1
        run = run_of(await claim(store))
        signals.give()

        async def moved() -> bool:
            return await feed.position(second.id) == 1

        await until(moved)
        assert await feed.position(first.id) is None
        reads, polls = counting.reads_of_positions, counting.polls
        await store.report(first.id, run, step=1, steps=10, phase=None)
        signals.give()

        async def polled() -> bool:
            return counting.polls > polls

        await until(polled)
        assert await feed.position(second.id) == 1
        assert counting.reads_of_positions == reads


async def test_new_job_has_its_position_before_its_change_is_read(
    database: Database, store: JobStore
) -> None:
    first = await create(store)
    async with JobFeed(store, ManualSignals()) as feed:
        assert await feed.position(first.id) == 1
        second = await create(store)
        assert await feed.position(second.id) == 2


async def test_positions_from_before_a_move_are_not_kept(database: Database, store: JobStore) -> None:
    first, second = await create(store), await create(store)
    counting = SlowStore(database)
    async with JobFeed(counting, ManualSignals()) as feed:
        looking = asyncio.create_task(feed.position(second.id))
        await counting.has_read.wait()
        await store.edit(second, None, UNLIMITED, place=Place(before=first.id))
        feed.forget_positions()
        counting.may_answer.set()
        assert await looking == 1
        assert await feed.position(first.id) == 2
