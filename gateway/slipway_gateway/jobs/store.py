"""Store of all jobs: the parts for callers, workers and upkeep, and what all of them look at.

:class:`JobStore` is what other packages use. Every method is one short transaction. A method that writes may
run again after a lost connection, and finds what it wrote before.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, ColumnElement, Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from slipway_gateway.database.tables import ChangeRow, JobRow, KeyRow
from slipway_gateway.jobs import order
from slipway_gateway.jobs.edit_store import EditStore
from slipway_gateway.jobs.job import Changes, Count, Failure, Status
from slipway_gateway.jobs.rows import job_of
from slipway_gateway.jobs.upkeep_store import UpkeepStore
from slipway_gateway.jobs.worker_store import WorkerStore


class JobStore(EditStore, WorkerStore, UpkeepStore):
    """Store of jobs."""

    async def positions(self) -> dict[str, int]:
        """Return the position of each waiting job among those of its model; 1 is next."""

        async def work(session: AsyncSession) -> dict[str, int]:
            columns = (
                JobRow.rank,
                JobRow.queued_at,
                JobRow.created_at,
                JobRow.id,
                JobRow.owner,
                JobRow.model,
            )
            query = select(*columns, KeyRow.served).join(KeyRow, KeyRow.id == JobRow.owner)
            rows = (await session.execute(query.where(JobRow.status == Status.QUEUED.value))).all()
            jobs = [order.QueuedJob(*row[:-1]) for row in rows]
            return order.positions(jobs, {row.owner: row.served for row in rows})

        return await self._database.read(work)

    async def counts(self) -> list[Count]:
        """Return the number of jobs and the oldest one for each model and status."""

        async def work(session: AsyncSession) -> list[Count]:
            group = (JobRow.model, JobRow.status)
            query = select(*group, func.count(), func.min(JobRow.created_at)).group_by(*group)
            rows = await session.execute(query)
            return [Count(model, Status(status), number, oldest) for model, status, number, oldest in rows]

        return await self._database.read(work)

    async def failures(self, since: float, most: int) -> list[Failure]:
        """Return the jobs that failed since a time, the newest first.

        Args:
            since: Time, in Unix seconds.
            most: Number of failures at most.
        """
        columns = (JobRow.id, JobRow.model, JobRow.completed_at, JobRow.error_code, JobRow.error_message)

        async def work(session: AsyncSession) -> list[Failure]:
            failed = (JobRow.status == Status.FAILED.value, JobRow.completed_at >= since)
            query = select(*columns).where(*failed).order_by(JobRow.completed_at.desc(), JobRow.id.desc())
            rows = await session.execute(query.limit(most))
            return [
                Failure(job_id, model, at or 0.0, code or "", message or "")
                for job_id, model, at, code, message in rows
            ]

        return await self._database.read(work)

    async def changed_since(self, mark: int | None) -> Changes:
        """Return the jobs that changed after a mark.

        Args:
            mark: Mark of the read before; None returns no jobs, and a mark for the changes from now on.
        """
        if self._database.is_postgres:
            return await self._database.read(lambda session: self._changed_on_postgres(session, mark))
        return await self._database.read(lambda session: self._changed_on_sqlite(session, mark))

    async def _changed_on_sqlite(self, session: AsyncSession, mark: int | None) -> Changes:
        """Read by version: transactions of SQLite end in the order of their versions."""
        newest = await session.scalar(select(func.max(ChangeRow.version))) or 0
        if mark is None or newest <= mark:
            # The newest row of the log may have been pruned.
            return Changes(max(newest, mark or 0))
        return await self._changed(session, newest, ChangeRow.version > mark)

    async def _changed_on_postgres(self, session: AsyncSession, mark: int | None) -> Changes:
        """Read by transaction.

        The mark is the oldest transaction that had not ended when the read before began. All later ones are
        read, so those that were read already come again, but none is missed. The mark is read first: each
        statement sees the transactions that ended before it.
        """
        oldest = func.pg_snapshot_xmin(func.pg_current_snapshot())
        newest = int(await session.scalar(select(cast(cast(oldest, Text), BigInteger))) or 0)
        if mark is None:
            return Changes(newest)
        return await self._changed(session, newest, ChangeRow.transaction_id >= mark)

    async def _changed(self, session: AsyncSession, mark: int, after: ColumnElement[bool]) -> Changes:
        """Return the jobs of the changes that meet a condition."""
        changed = select(ChangeRow.job_id).where(after).distinct().subquery()
        query = select(changed.c.job_id, JobRow).outerjoin(JobRow, JobRow.id == changed.c.job_id)
        rows = (await session.execute(query)).all()
        jobs = sorted((job_of(row) for _, row in rows if row is not None), key=lambda job: job.version)
        return Changes(mark, jobs, [job_id for job_id, row in rows if row is None])
