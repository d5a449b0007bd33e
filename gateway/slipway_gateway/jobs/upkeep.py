"""Upkeep of jobs and their contents, which every gateway does now and then.

A round takes jobs from workers that stopped answering, deletes what has expired, deletes contents whose job
does not exist, and keeps the size of all contents below a quota. Contents are deleted before the row of
their job, and the job is hidden before both, so an interrupted round leaves nothing that nobody finds again.
Several gateways may do a round at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from slipway_gateway.jobs.job import Job
from slipway_gateway.jobs.store import JobStore
from slipway_gateway.jobs.upkeep_store import RUNS_FROM_STATE
from slipway_serving.protocol.errors import SlipwayError

_LOG = logging.getLogger(__name__)
_ORPHAN_AGE_S = 3600.0


class Contents(Protocol):
    """What upkeep needs of :class:`slipway_gateway.contents.store.ContentStore`."""

    async def delete(self, job_id: str, *names: str) -> None:
        """Delete contents of a job; no names delete all of them."""

    async def jobs(self) -> Mapping[str, tuple[int, float]]:
        """Return the size in bytes and the time of the newest content of each job."""


class Upkeep:
    """Upkeep of jobs.

    Args:
        store: Store of the jobs.
        contents: Store of their contents.
        max_attempts: Number of runs that may begin without a state.
        max_runs_from_state: Number of runs that may begin from the same state.
        quota_bytes: Largest size of all contents; None does not limit it.
        orphan_age_s: Age at which contents without a job are deleted, in seconds. A content may be stored
            a little before its job.
        ended: Function that is called for each job that a lapsed lease has ended.
        measured: Function that receives the size of all contents, in bytes.
        clock: Function that returns the time in Unix seconds.
    """

    def __init__(
        self,
        store: JobStore,
        contents: Contents,
        *,
        max_attempts: int = 2,
        max_runs_from_state: int = RUNS_FROM_STATE,
        quota_bytes: int | None = None,
        orphan_age_s: float = _ORPHAN_AGE_S,
        ended: Callable[[Job], None] = lambda _: None,
        measured: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._contents, self._clock = store, contents, clock
        self._ended, self._measured = ended, measured
        self._max_attempts, self._max_runs_from_state = max_attempts, max_runs_from_state
        self._quota_bytes, self._orphan_age_s = quota_bytes, orphan_age_s

    async def run(self, lease_interval_s: float = 5.0, contents_interval_s: float = 60.0) -> None:
        """Do rounds until the task is cancelled; what fails is logged and done in the next round.

        Args:
            lease_interval_s: Time between two looks at the leases, in seconds.
            contents_interval_s: Time between two looks at contents and old rows, in seconds.
        """
        next_contents = 0.0
        while True:
            try:
                await self.take_back_lapsed()
                if time.monotonic() >= next_contents:
                    next_contents = time.monotonic() + contents_interval_s
                    await self.clean()
            except SlipwayError as error:
                _LOG.warning("upkeep: a round is not complete: %s", error)
            await asyncio.sleep(lease_interval_s)

    async def take_back_lapsed(self) -> list[Job]:
        """Take jobs from workers whose lease has lapsed, and return them as they are now."""
        jobs = await self._store.lapsed(self._max_attempts, self._max_runs_from_state)
        for job in jobs:
            _LOG.warning(
                "upkeep: the lease of %s on %s has lapsed; it is %s now", job.worker, job.id, job.status
            )
            if job.status.is_final:
                self._ended(job)
        return jobs

    async def clean(self) -> None:
        """Delete what has expired or belongs to no job, and keep the quota."""
        while expired := await self._store.expired(self._clock()):
            for job in expired:
                await self._delete(job.id)
        await self._delete_orphans()
        await self._keep_quota()
        await self._store.prune()

    async def _delete(self, job_id: str) -> None:
        await self._contents.delete(job_id)
        await self._store.remove(job_id)

    async def _delete_orphans(self) -> None:
        """Delete contents without a job."""
        oldest = self._clock() - self._orphan_age_s
        # Contents are read before jobs, so that a job that was created in between is not missed.
        contents = await self._contents.jobs()
        known = await self._store.ids()
        for job_id, (_, changed_at) in contents.items():
            if job_id not in known and changed_at < oldest:
                _LOG.info("upkeep: contents of %s have no job and are deleted", job_id)
                await self._contents.delete(job_id)

    async def _keep_quota(self) -> None:
        """Delete the jobs that ended first until the contents take no more than the quota."""
        sizes = {job_id: size for job_id, (size, _) in (await self._contents.jobs()).items()}
        self._measured(sum(sizes.values()))
        while self._quota_bytes is not None and sum(sizes.values()) > self._quota_bytes:
            job = await self._store.hide_oldest(list(sizes))
            if job is None:
                _LOG.warning("upkeep: contents take more than the quota, and no job that has them has ended")
                return
            _LOG.info("upkeep: %s is deleted, since contents take more than the quota", job.id)
            await self._delete(job.id)
            sizes.pop(job.id, None)
