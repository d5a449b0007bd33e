"""What callers do with their jobs: read them, list them, and ask that they are paused, cancelled or deleted.

A job of another key does not exist for a caller, and neither does one whose deletion was asked for. A job
that no worker has changes at once; a running one gets a wish, which its worker reads at the next step.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, bindparam, select, tuple_
from sqlalchemy.orm import Session

from slipway_gateway.access.limits import UNLIMITED, KeyLimits, check_priority, rank
from slipway_gateway.database.tables import JobRow, PreviewRow
from slipway_gateway.errors import ApiError, conflict
from slipway_gateway.jobs.creation import CreationStore
from slipway_gateway.jobs.job import Job, Status, Wish, is_job_id, unknown_job
from slipway_gateway.jobs.rows import job_of

# Fields that belong to one stop and not to the video.
_OF_A_STOP = frozenset({"stop_after_step", "draft"})
_JOB = select(JobRow.__table__).where(JobRow.id == bindparam("job_id"))


class CallerStore(CreationStore):
    """Store of jobs, as callers use it."""

    async def get(self, job_id: str, owner: str | None) -> Job | None:
        """Return a job, or None if it does not exist.

        Args:
            job_id: Identifier of the job, which may be any text.
            owner: Identifier of the key that must have created it and not asked for its deletion; None for
                any job.
        """
        if not is_job_id(job_id):
            return None

        for row in await self._database.select(_JOB, {"job_id": job_id}):
            if owner is None or (row.owner == owner and row.wish != Wish.DELETE.value):
                return job_of(row)
        return None

    async def list(
        self, owner: str, *, after: str | None = None, limit: int = 20, order: str = "desc"
    ) -> tuple[builtins.list[Job], bool]:
        """Return a page of a key's jobs, sorted by the time of creation.

        Args:
            owner: Identifier of the key.
            after: Identifier of the job that the page begins after; None begins with the first one.
            limit: Number of jobs at most.
            order: "asc" for the oldest first, "desc" for the newest first.

        Returns:
            Jobs, and whether there are more after them.

        Raises:
            ApiError: `after` is no job of this key (status 404).
        """
        place = tuple_(JobRow.created_at, JobRow.id)
        ascending = order == "asc"

        def work(session: Session) -> tuple[builtins.list[Job], bool]:
            query = select(JobRow).where(*_visible(owner))
            if after is not None:
                start = session.get(JobRow, after) if is_job_id(after) else None
                if start is None or start.owner != owner:
                    raise unknown_job(after)
                edge = tuple_(start.created_at, start.id)
                query = query.where(place > edge if ascending else place < edge)
            columns = (JobRow.created_at, JobRow.id)
            query = query.order_by(*(column.asc() if ascending else column.desc() for column in columns))
            rows = list(session.scalars(query.limit(limit + 1)))
            return [job_of(row) for row in rows[:limit]], len(rows) > limit

        return await self._database.read(work)

    async def preview(self, job_id: str) -> tuple[int, bytes] | None:
        """Return the step and the picture of a job's newest preview, or None if there is none."""

        def work(session: Session) -> tuple[int, bytes] | None:
            found = session.get(PreviewRow, job_id)
            return None if found is None else (found.step, found.picture)

        return await self._database.read(work)

    async def ask(self, job_id: str, owner: str | None, wish: Wish) -> Job:
        """Ask that a job is paused, cancelled or deleted.

        A running job gets the wish and is returned as running. Any other job changes at once. A deleted one
        is no longer visible; the caller then deletes its contents and calls `remove`, and upkeep does so if
        the caller cannot. Asking again for what has happened already returns the job.

        Args:
            job_id: Identifier of the job, which may be any text.
            owner: Identifier of the key; None for any job.
            wish: Wish other than :attr:`Wish.NONE`.

        Raises:
            ApiError: The job does not exist (status 404), or its status does not allow the wish (409).
        """

        def work(session: Session, repeated: bool) -> Job:
            row = self._own(session, job_id, None if repeated and wish is Wish.DELETE else owner)
            status = Status(row.status)
            if wish is Wish.DELETE:
                return self._delete(session, row)
            done = Status.PAUSED if wish is Wish.PAUSE else Status.CANCELLED
            if status is done or row.wish == wish.value:
                return job_of(row)
            if status.is_final:
                raise conflict(
                    f"video {row.id} is {status} and cannot be {done} any more; create a new one",
                    f"video_{status}",
                )
            if status is Status.IN_PROGRESS:
                if row.wish == Wish.CANCEL.value:
                    raise conflict(f"video {row.id} is being cancelled; create a new one", "video_cancelled")
                return self._change(session, row, wish=wish.value)
            if wish is Wish.CANCEL:
                return self._end(session, row, Status.CANCELLED)
            expires_at = self._clock() + self._keep_s
            return self._change(session, row, status=Status.PAUSED.value, expires_at=expires_at)

        return await self._database.write(work)

    async def resume(
        self,
        job_id: str,
        owner: str | None,
        changes: Mapping[str, Any] | None = None,
        *,
        limits: KeyLimits = UNLIMITED,
        max_waiting: int | None = None,
    ) -> Job:
        """Put a paused job back into the queue, behind the other jobs of its key.

        Args:
            job_id: Identifier of the job, which may be any text.
            owner: Identifier of the key; None for any job.
            changes: Fields of the request that change. `stop_after_step` and `draft` of the earlier request
                are removed.
            limits: Limits of the key, which a resumed job must keep like a new one.
            max_waiting: Number of jobs of all keys that may wait; None does not limit them.

        Raises:
            ApiError: The job does not exist (status 404), or is not paused (409).
            InvalidRequest: The new priority is above the key's highest one.
            Overloaded: The queue is full, or the key has as many waiting jobs as it may have.
        """
        changed = dict(changes or {})
        if "priority" in changed:
            check_priority(changed["priority"], limits)

        def work(session: Session, repeated: bool) -> Job:
            self._take_turn_of_creation(session)
            row = self._own(session, job_id, owner)
            status = Status(row.status)
            if repeated and status is Status.QUEUED:
                return job_of(row)
            if status is not Status.PAUSED:
                stopping = status is Status.IN_PROGRESS and row.wish == Wish.PAUSE.value
                fix = "wait until it is paused" if stopping else "only a paused video can be resumed"
                raise ApiError(
                    f"video {row.id} is {status}; {fix}",
                    status=409,
                    code="video_not_paused",
                    retry_after_s=1.0 if stopping else None,
                    final=not stopping,
                )
            self._check_waiting(session, row.owner, limits, max_waiting)
            request = {name: value for name, value in row.request.items() if name not in _OF_A_STOP}
            priority = changed.get("priority", row.priority)
            return self._change(
                session,
                row,
                status=Status.QUEUED.value,
                wish=Wish.NONE.value,
                request=request | changed,
                priority=priority,
                rank=rank(priority),
                fps=changed.get("fps", row.fps),
                queued_at=self._clock(),
                expires_at=None,
            )

        return await self._database.write(work)

    def _own(self, session: Session, job_id: str, owner: str | None) -> JobRow:
        """Return the locked row of a caller's job."""
        rows = []
        if is_job_id(job_id):
            rows = self._locked(session, JobRow.id == job_id, *_visible(owner))
        if not rows:
            raise unknown_job(job_id)
        return rows[0]

    def _delete(self, session: Session, row: JobRow) -> Job:
        if row.wish == Wish.DELETE.value:
            return job_of(row)
        values: dict[str, Any] = {"wish": Wish.DELETE.value}
        if Status(row.status) in {Status.QUEUED, Status.PAUSED}:
            values |= {"status": Status.CANCELLED.value, "completed_at": self._clock()}
        return self._change(session, row, **values)


def _visible(owner: str | None) -> builtins.list[ColumnElement[bool]]:
    """Return the conditions of the jobs that a key sees; None sees all."""
    return [] if owner is None else [JobRow.owner == owner, JobRow.wish != Wish.DELETE.value]
