"""News of jobs for any number of watchers, from one reader of the log of changes.

One task waits for a signal, reads the changes once, and hands each changed job to its watchers. A slow
watcher gets the newest version and not every one in between. Workers wait here for new jobs, and webhooks for
ended ones. Positions in the queue are read again only after the queue has changed, and then once for all who
look within a quarter of a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol, Self

from slipway_gateway.jobs.job import Changes, Job, Status, Wish
from slipway_gateway.signal import Signal
from slipway_serving.protocol.errors import SlipwayError

_LOG = logging.getLogger(__name__)
_RETRY_S = 0.5
# Signals that come within this time are read together.
_GATHER_S = 0.01
# Time after a change of the queue within which looks may find the positions from before it. To read a long
# queue takes longer than any other answer.
_POSITIONS_S = 0.25


class ReadsJobs(Protocol):
    """What the feed needs of :class:`slipway_gateway.jobs.store.JobStore`."""

    async def get(self, job_id: str, owner: str | None) -> Job | None:
        """Return a job."""

    async def changed_since(self, mark: int | None) -> Changes:
        """Return the jobs that changed after a mark."""

    async def positions(self) -> dict[str, int]:
        """Return the position of each waiting job."""


class Signals(Protocol):
    """What the feed needs of :class:`slipway_gateway.database.changes.ChangeSignals`."""

    async def wait(self) -> None:
        """Wait for a signal, or for the end of an interval."""


class _Watcher:
    """Newest news for one watcher; None says that the job is removed."""

    def __init__(self) -> None:
        self.news: Job | None = None
        self.given = asyncio.Event()

    def give(self, news: Job | None) -> None:
        self.news = news
        self.given.set()


class JobFeed:
    """Feed of changed jobs.

    It is an asynchronous context manager, and reads changes within it.

    Args:
        store: Store that the feed reads.
        signals: Signals of changes; whoever created them opens and closes them.
        gather_s: Time within which signals are read together, in seconds.

    Attributes:
        queued: Signal that is given when a job can start that could not before.
        ended: Signal that is given when a job has ended.
    """

    def __init__(self, store: ReadsJobs, signals: Signals, *, gather_s: float = _GATHER_S) -> None:
        self._store = store
        self._signals = signals
        self._gather_s = gather_s
        self._watchers: dict[str, set[_Watcher]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None
        self._mark: int | None = None
        self.queued, self.ended = Signal(), Signal()
        self._positions: dict[str, int] | None = None
        self._positions_are_old = False
        self._moves = 0
        self._positions_lock = asyncio.Lock()
        self._refresh: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._mark = (await self._store.changed_since(None)).mark
        self._task = asyncio.create_task(self._run(), name="feed of jobs")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks = [task for task in (self._task, self._refresh) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def watch(self, job_id: str) -> AsyncIterator[Job]:
        """Yield a job as it is now, and again after each change, until it has ended or is deleted.

        Args:
            job_id: Identifier of the job. The caller must have checked whose it is.
        """
        watcher = _Watcher()
        # Changes between the registration and the first read are not lost.
        self._watchers[job_id].add(watcher)
        try:
            job = await self._store.get(job_id, None)
            version = 0
            while job is not None and job.wish is not Wish.DELETE:
                if job.version != version:
                    version = job.version
                    yield job
                if job.status.is_final:
                    return
                await watcher.given.wait()
                watcher.given.clear()
                job = watcher.news
        finally:
            self._watchers[job_id].discard(watcher)
            if not self._watchers[job_id]:
                del self._watchers[job_id]

    async def position(self, job_id: str) -> int | None:
        """Return the position of a waiting job among those of its model, or None if it does not wait.

        A change of the queue by others may be missing for a quarter of a second. A job that has just begun to
        wait has its position at once.
        """
        if self._positions is None or job_id not in self._positions:
            async with self._positions_lock:
                if self._positions is None or job_id not in self._positions:
                    await self._read_positions()
        elif self._positions_are_old and (self._refresh is None or self._refresh.done()):
            self._refresh = asyncio.create_task(self._refresh_positions(), name="positions of jobs")
        return None if self._positions is None else self._positions.get(job_id)

    def forget_positions(self) -> None:
        """Let the next look read the positions again, since this process has just moved a job."""
        self._positions = None
        self._moves += 1

    async def _refresh_positions(self) -> None:
        """Read the positions again in a moment, so that changes that come together cost one read."""
        await asyncio.sleep(_POSITIONS_S)
        try:
            async with self._positions_lock:
                await self._read_positions()
        except SlipwayError as error:
            _LOG.warning("feed: the positions of jobs cannot be read now: %s", error)

    async def _read_positions(self) -> None:
        moves: int | None = None
        positions: dict[str, int] = {}
        while moves != self._moves:
            moves, self._positions_are_old = self._moves, False
            positions = await self._store.positions()
        self._positions = positions

    async def _run(self) -> None:
        """Read the changes after each signal; a failed read is repeated."""
        while True:
            try:
                await self._signals.wait()
                await self._read()
            except SlipwayError as error:
                _LOG.warning("feed: the changes of jobs cannot be read now: %s", error)
                await asyncio.sleep(_RETRY_S)
            await asyncio.sleep(self._gather_s)

    async def _read(self) -> None:
        changes = await self._store.changed_since(self._mark)
        self._mark = changes.mark
        for job in changes.jobs:
            self._tell(job.id, job)
        for job_id in changes.removed:
            self._tell(job_id, None)
        if any(job.status is Status.QUEUED for job in changes.jobs):
            self.queued.give()
        if any(job.status.is_final for job in changes.jobs):
            self.ended.give()

    def _tell(self, job_id: str, news: Job | None) -> None:
        waits = news is not None and news.status is Status.QUEUED
        is_being_read = self._positions_lock.locked()
        if waits or is_being_read or (self._positions is not None and job_id in self._positions):
            self._positions_are_old = True
        for watcher in self._watchers.get(job_id, ()):
            watcher.give(news)
