"""What keeps the table of jobs in order: lapsed leases, expired and deleted jobs, and old changes."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from slipway_gateway.database.tables import ChangeRow, Delivery, JobRow, UsageRow
from slipway_gateway.jobs.job import Job, Status, Wish
from slipway_gateway.jobs.rows import JobRows, job_of

RUNS_FROM_STATE = 8
"""Number of runs that may begin from the same state. A video that ends each of its runs, and perhaps the
replica too, must not be tried for ever; shutdowns of workers do not count."""
_FINAL = [status.value for status in Status if status.is_final]
_PRUNE_AFTER_S = 3600.0
_DAY_S = 86_400
_KEEP_DELIVERIES_S = 7 * 86_400.0


class UpkeepStore(JobRows):
    """Store of jobs, as upkeep uses it."""

    async def lapsed(self, max_attempts: int, max_runs_from_state: int = RUNS_FROM_STATE) -> list[Job]:
        """Take jobs from workers whose lease has lapsed, at most 100 at a time.

        Args:
            max_attempts: Number of runs that may begin without a state; after them, the job fails.
            max_runs_from_state: Number of runs that may begin from the same state; after them, the job fails.

        Returns:
            Jobs as they are now: queued again, failed with the reason, or paused or cancelled by a wish.
        """

        def work(session: Session, _: bool) -> list[Job]:
            now = self._lease_time(session)
            rows = self._locked(
                session,
                JobRow.status == Status.IN_PROGRESS.value,
                JobRow.lease_until < now,
                skip=True,
            )
            return [
                self._take_back(session, row, max_attempts, max(max_attempts, max_runs_from_state))
                for row in rows
            ]

        return await self._database.write(work) if await self._has_lapsed() else []

    async def expired(self, now: float) -> list[Job]:
        """Hide the jobs whose time is over, and return them and those that were deleted, at most 100.

        Their contents are to be deleted, and then their rows by :meth:`remove`. Until then, every call
        returns them again, so an interrupted deletion goes on.

        Args:
            now: Time, in Unix seconds.
        """
        deleted = JobRow.wish == Wish.DELETE.value
        over = or_(JobRow.expires_at <= now, deleted)
        ended = JobRow.status.in_([*_FINAL, Status.PAUSED.value])

        def look(session: Session) -> bool:
            return session.scalar(select(JobRow.id).where(over, ended).limit(1)) is not None

        def work(session: Session, _: bool) -> list[Job]:
            rows = self._locked(session, over, ended, skip=True)
            return [job_of(row) if row.wish == Wish.DELETE else self._hide(session, row) for row in rows]

        return await self._database.write(work) if await self._database.read(look) else []

    async def hide_oldest(self, job_ids: Sequence[str]) -> Job | None:
        """Hide the job among these that ended first, so that its contents can be deleted.

        Args:
            job_ids: Identifiers of jobs that have contents.

        Returns:
            Job that is hidden now, or None if none of them has ended.
        """

        def work(session: Session, _: bool) -> Job | None:
            ended = (JobRow.status.in_(_FINAL), JobRow.wish != Wish.DELETE.value)
            query = select(JobRow.id).where(*ended).order_by(JobRow.completed_at, JobRow.id)
            with_contents = set(job_ids)
            for job_id in session.scalars(query):
                if job_id in with_contents:
                    rows = self._locked(session, JobRow.id == job_id, *ended, skip=True)
                    if rows:
                        return self._hide(session, rows[0])
            return None

        return await self._database.write(work)

    async def ids(self) -> set[str]:
        """Return the identifiers of all jobs."""

        def work(session: Session) -> set[str]:
            return set(session.scalars(select(JobRow.id)))

        return await self._database.read(work)

    async def remove(self, job_id: str, worker: str | None = None) -> bool:
        """Remove the row of a job that does not run, or that this run has.

        Args:
            job_id: Identifier of the job.
            worker: Name of the run that has the job; None for a job that does not run.

        Returns:
            True if the row existed and is removed now.
        """
        running = JobRow.status == Status.IN_PROGRESS.value

        def work(session: Session, repeated: bool) -> bool:
            allowed = ~running if worker is None else or_(~running, JobRow.worker == worker)
            rows = self._locked(session, JobRow.id == job_id, allowed)
            if not rows:
                return repeated and session.get(JobRow, job_id) is None
            self._log_change(session, job_id)
            session.delete(rows[0])
            return True

        return await self._database.write(work)

    async def prune(self) -> None:
        """Delete old changes, the counts of past days, and webhooks that ended a week ago."""
        now = self._clock()

        def work(session: Session, _: bool) -> None:
            session.execute(delete(ChangeRow).where(ChangeRow.at < now - _PRUNE_AFTER_S))
            old = (Delivery.next_at.is_(None), Delivery.created_at < now - _KEEP_DELIVERIES_S)
            session.execute(delete(Delivery).where(*old))
            session.execute(delete(UsageRow).where(UsageRow.day < int(now // _DAY_S) - 1))

        await self._database.write(work)

    async def _has_lapsed(self) -> bool:
        def work(session: Session) -> bool:
            now = self._lease_time(session)
            query = select(JobRow.id).where(
                JobRow.status == Status.IN_PROGRESS.value, JobRow.lease_until < now
            )
            return session.scalar(query.limit(1)) is not None

        return await self._database.read(work)

    def _take_back(self, session: Session, row: JobRow, max_attempts: int, max_runs_from_state: int) -> Job:
        """Queue a lapsed job again, or end it if it has been tried often enough."""
        if row.wish in {Wish.CANCEL.value, Wish.DELETE.value}:
            return self._stopped(session, row, Status.QUEUED)
        if row.state_step is None:
            tried, most, since = row.attempts, max_attempts, "before it saved a first state"
        else:
            tried, most, since = row.runs_from_state, max_runs_from_state, f"after step {row.state_step}"
        if tried < most:
            return self._stopped(session, row, Status.QUEUED)
        times = "once" if tried == 1 else f"{tried} times"
        message = (
            f"the worker of video {row.id} stopped answering {times} {since}; create the video again, and"
            " look at the logs of workers and replicas if this goes on"
        )
        return self._end(session, row, Status.FAILED, error_code="worker_lost", error_message=message)

    def _hide(self, session: Session, row: JobRow) -> Job:
        """Make a job that has ended or is paused invisible to its caller."""
        ended = row.status in _FINAL
        status = row.status if ended else Status.CANCELLED.value
        return self._change(session, row, wish=Wish.DELETE.value, status=status)
