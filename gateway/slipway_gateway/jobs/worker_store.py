"""What workers do with jobs: claim one, keep its lease, report steps, and end the run.

Every claim gives the run a name of its own. All writes of a run require that name and the status
"in_progress" of the locked row, so a run whose lease has lapsed can never overwrite the work of another one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from slipway_gateway.database.tables import JobRow, KeyRow, PreviewRow
from slipway_gateway.jobs.job import PREPARING, Job, LeaseLost, Status, Wish
from slipway_gateway.jobs.rows import JobRows, added_durations, job_of, storable

EndOfRun = Callable[[Session, JobRow, dict[str, Any]], Job]

# Number of PostgreSQL's advisory lock; any number that nothing else in the database uses.
_CLAIM_LOCK = 0x736C_6970_0003


class WorkerStore(JobRows):
    """Store of jobs, as workers use it."""

    async def claim(self, worker: str, models: Mapping[str, int], lease_s: float) -> Job | None:
        """Take the next job of a model with a free place.

        The highest priority comes first. Within a priority, keys take turns: the key whose job was started
        longest ago is next, with the job that it queued first.

        Args:
            worker: Name of the worker.
            models: Number of free places for each served model.
            lease_s: Time until the lease lapses, in seconds.

        Returns:
            Job whose `worker` is the name of this run, which every later call needs; None if no job waits.
        """
        free = [model for model, places in models.items() if places > 0]
        if not free or not await self._has_waiting(free):
            return None
        run = f"{worker}#{secrets.token_hex(8)}"

        def work(session: Session, repeated: bool) -> Job | None:
            if repeated and (found := self._locked(session, JobRow.worker == run)):
                return job_of(found[0])
            # Workers take turns, so that each sees which key the one before it has served.
            self._take_turn(session, _CLAIM_LOCK)
            row = self._next_row(session, free)
            if row is None:
                return None
            has_state = row.state_step is not None
            job = self._change(
                session,
                row,
                status=Status.IN_PROGRESS.value,
                worker=run,
                lease_until=self._lease_time(session) + lease_s,
                started_at=row.started_at or self._clock(),
                attempts=row.attempts + (not has_state),
                runs_from_state=row.runs_from_state + 1,
                step=row.state_step or 0,
                phase=PREPARING,
                expires_at=None,
            )
            session.execute(update(KeyRow).where(KeyRow.id == job.owner).values(served=job.version))
            return job

        return await self._database.write(work)

    async def renew(self, runs: Mapping[str, str], lease_s: float) -> frozenset[str]:
        """Prolong the leases of a worker's runs.

        Args:
            runs: Name of the run (`Job.worker`) for the identifier of each job that the worker works on.
            lease_s: Time until the leases lapse, in seconds.

        Returns:
            Identifiers of the jobs that the worker still has; it must stop the runs of all others.
        """
        if not runs:
            return frozenset()

        def work(session: Session, _: bool) -> frozenset[str]:
            until = self._lease_time(session) + lease_s
            rows = self._locked(
                session, JobRow.worker.in_(runs.values()), JobRow.status == Status.IN_PROGRESS.value
            )
            for row in rows:
                row.lease_until = until
            return frozenset(row.id for row in rows)

        return await self._database.write(work)

    async def report(
        self,
        job_id: str,
        worker: str,
        *,
        step: int,
        steps: int,
        phase: str | None,
        preview: bytes | None = None,
    ) -> Wish:
        """Store how far a run is.

        Args:
            job_id: Identifier of the job.
            worker: Name of the run (`Job.worker`).
            step: Number of steps that are done.
            steps: Number of steps in total.
            phase: Stage of the work.
            preview: Encoded picture of the step, which replaces the one before; None keeps that.

        Returns:
            What the caller wants the run to do now.

        Raises:
            LeaseLost: The job is no longer this run's.
        """

        def work(session: Session, _: bool) -> Wish:
            row = self._running(session, job_id, worker)
            if preview is not None:
                session.merge(PreviewRow(job_id=job_id, step=step, picture=preview))
            # A state may be ahead of the reports, which are written one at a time.
            furthest = max(step, row.step)
            return (self._change(session, row, step=furthest, steps=steps, phase=phase)).wish

        return await self._database.write(work)

    async def state_saved(self, job_id: str, worker: str, step: int | None) -> Job:
        """Record that the content "state" is stored, or that it is deleted.

        Args:
            job_id: Identifier of the job.
            worker: Name of the run.
            step: Number of steps that the state comes after; None if there is no state any more.

        Raises:
            LeaseLost: The job is no longer this run's.
        """

        def work(session: Session, _: bool) -> Job:
            row = self._running(session, job_id, worker)
            is_new = step is not None and step > (row.state_step or 0)
            runs = 0 if is_new else row.runs_from_state
            furthest = row.step if step is None else max(step, row.step)
            return self._change(session, row, state_step=step, runs_from_state=runs, step=furthest)

        return await self._database.write(work)

    async def draft_saved(self, job_id: str, worker: str, step: int) -> Job:
        """Record that the content "draft" is stored.

        Args:
            job_id: Identifier of the job.
            worker: Name of the run.
            step: Number of steps that the draft comes after.

        Raises:
            LeaseLost: The job is no longer this run's.
        """

        def work(session: Session, _: bool) -> Job:
            row = self._running(session, job_id, worker)
            return self._change(session, row, draft_step=step)

        return await self._database.write(work)

    async def complete(
        self,
        job_id: str,
        worker: str,
        *,
        inference_time_s: float,
        stage_durations: Mapping[str, float] | None = None,
        expires_at: float | None = None,
    ) -> Job:
        """End a run whose video is stored; a wish that came too late to be met is dropped, except a deletion.

        Args:
            job_id: Identifier of the job.
            worker: Name of the run.
            inference_time_s: Duration of this run, in seconds.
            stage_durations: Seconds per stage of this run.
            expires_at: Time of expiry, in Unix seconds; by default that of the store.

        Raises:
            LeaseLost: The job is no longer this run's.
        """

        def end(session: Session, row: JobRow, spent: dict[str, Any]) -> Job:
            return self._end(session, row, Status.COMPLETED, expires_at=expires_at, step=row.steps, **spent)

        return await self._end_run(job_id, worker, end, {Status.COMPLETED}, inference_time_s, stage_durations)

    async def fail(
        self,
        job_id: str,
        worker: str,
        code: str,
        message: str,
        *,
        inference_time_s: float = 0.0,
        stage_durations: Mapping[str, float] | None = None,
        expires_at: float | None = None,
    ) -> Job:
        """End a run that failed for good.

        Args:
            job_id: Identifier of the job.
            worker: Name of the run.
            code: Name of the error, for programs.
            message: Sentence about the error.
            inference_time_s: Duration of this run, in seconds.
            stage_durations: Seconds per stage of this run.
            expires_at: Time of expiry, in Unix seconds; by default that of the store.

        Raises:
            LeaseLost: The job is no longer this run's.
        """
        error = {"error_code": storable(code), "error_message": storable(message)}

        def end(session: Session, row: JobRow, spent: dict[str, Any]) -> Job:
            return self._end(session, row, Status.FAILED, expires_at=expires_at, **error, **spent)

        return await self._end_run(job_id, worker, end, {Status.FAILED}, inference_time_s, stage_durations)

    async def pause(
        self,
        job_id: str,
        worker: str,
        *,
        inference_time_s: float = 0.0,
        stage_durations: Mapping[str, float] | None = None,
    ) -> Job:
        """End a run that has stopped and may be resumed; it is cancelled if the caller asked for that.

        Args:
            job_id: Identifier of the job.
            worker: Name of the run.
            inference_time_s: Duration of this run, in seconds.
            stage_durations: Seconds per stage of this run.

        Raises:
            LeaseLost: The job is no longer this run's.
        """

        def end(session: Session, row: JobRow, spent: dict[str, Any]) -> Job:
            return self._stopped(session, row, Status.PAUSED, **spent)

        ends = {Status.PAUSED, Status.CANCELLED}
        return await self._end_run(job_id, worker, end, ends, inference_time_s, stage_durations)

    async def cancel(
        self,
        job_id: str,
        worker: str,
        *,
        inference_time_s: float = 0.0,
        stage_durations: Mapping[str, float] | None = None,
    ) -> Job:
        """End a run whose caller asked for its cancellation or deletion.

        Args:
            job_id: Identifier of the job.
            worker: Name of the run.
            inference_time_s: Duration of this run, in seconds.
            stage_durations: Seconds per stage of this run.

        Raises:
            LeaseLost: The job is no longer this run's.
        """

        def end(session: Session, row: JobRow, spent: dict[str, Any]) -> Job:
            return self._end(session, row, Status.CANCELLED, **spent)

        return await self._end_run(job_id, worker, end, {Status.CANCELLED}, inference_time_s, stage_durations)

    async def requeue(
        self,
        job_id: str,
        worker: str,
        *,
        counted: bool = True,
        inference_time_s: float = 0.0,
        stage_durations: Mapping[str, float] | None = None,
    ) -> Job:
        """End a run that another one continues, from the state if there is one.

        The job comes before the other waiting jobs of its key. If the caller asked for it, the job is paused
        or cancelled instead.

        Args:
            job_id: Identifier of the job.
            worker: Name of the run.
            counted: False if the run does not count as an attempt, as when the worker shuts down.
            inference_time_s: Duration of this run, in seconds.
            stage_durations: Seconds per stage of this run.

        Raises:
            LeaseLost: The job is no longer this run's.
        """

        def end(session: Session, row: JobRow, spent: dict[str, Any]) -> Job:
            if not counted:
                row.runs_from_state = max(0, row.runs_from_state - 1)
                if row.state_step is None:
                    row.attempts = max(0, row.attempts - 1)
            return self._stopped(session, row, Status.QUEUED, **spent)

        ends = {Status.QUEUED, Status.PAUSED, Status.CANCELLED}
        return await self._end_run(job_id, worker, end, ends, inference_time_s, stage_durations)

    async def _end_run(
        self,
        job_id: str,
        worker: str,
        end: EndOfRun,
        ends: set[Status],
        inference_time_s: float,
        stage_durations: Mapping[str, float] | None,
    ) -> Job:
        """End a run in one transaction.

        Args:
            job_id: Identifier of the job.
            worker: Name of the run.
            end: Function that changes the locked row.
            ends: Statuses that the job may have afterwards.
            inference_time_s: Duration of this run, in seconds.
            stage_durations: Seconds per stage of this run.
        """

        def work(session: Session, repeated: bool) -> Job:
            if repeated:
                ended = JobRow.status.in_([status.value for status in ends])
                rows = self._locked(session, JobRow.id == job_id, JobRow.worker == worker, ended)
                if rows:
                    return job_of(rows[0])
            row = self._running(session, job_id, worker)
            spent = {
                "inference_time_s": row.inference_time_s + inference_time_s,
                "stage_durations": added_durations(row.stage_durations, stage_durations or {}),
            }
            session.execute(delete(PreviewRow).where(PreviewRow.job_id == job_id))
            return end(session, row, spent)

        return await self._database.write(work)

    def _running(self, session: Session, job_id: str, worker: str) -> JobRow:
        """Return the locked row of a job that this run still has."""
        rows = self._locked(
            session,
            JobRow.id == job_id,
            JobRow.worker == worker,
            JobRow.status == Status.IN_PROGRESS.value,
        )
        if not rows:
            raise LeaseLost(f"video {job_id} is no longer the job of {worker}; stop the run")
        return rows[0]

    async def _has_waiting(self, models: list[str]) -> bool:
        """Return whether any job waits; a worker that has nothing to do must not lock the database."""
        waits = JobRow.status == Status.QUEUED.value

        def work(session: Session) -> bool:
            query = select(JobRow.id).where(waits, JobRow.model.in_(models)).limit(1)
            return session.scalar(query) is not None

        return await self._database.read(work)

    def _next_row(self, session: Session, models: list[str]) -> JobRow | None:
        """Return the locked row of the job that is next; `order.start_order` predicts the same one."""
        query = (
            select(JobRow)
            .join(KeyRow, KeyRow.id == JobRow.owner)
            .where(JobRow.status == Status.QUEUED.value, JobRow.model.in_(models))
            .order_by(JobRow.rank, KeyRow.served, JobRow.queued_at, JobRow.created_at, JobRow.id)
            .limit(1)
            .with_for_update(of=JobRow, skip_locked=True)
        )
        return session.scalars(query).one_or_none()
