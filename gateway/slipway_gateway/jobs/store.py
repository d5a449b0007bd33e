"""Store of all jobs: the parts for callers, workers and upkeep, and what all of them look at.

:class:`JobStore` is what other packages use. Every method is one short transaction. A method that writes may
run again after a lost connection, and finds what it wrote before.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, Text, bindparam, cast, func, select
from sqlalchemy.orm import Session

from slipway_gateway.database.tables import ChangeRow, JobRow, KeyRow
from slipway_gateway.jobs import order
from slipway_gateway.jobs.edit_store import EditStore
from slipway_gateway.jobs.job import Changes, Count, Failure, Status
from slipway_gateway.jobs.rows import job_of
from slipway_gateway.jobs.upkeep_store import UpkeepStore
from slipway_gateway.jobs.worker_store import WorkerStore

_WAITS = JobRow.status == Status.QUEUED.value
_PLACE = func.row_number().over(order_by=(JobRow.queued_at, JobRow.created_at, JobRow.id))
_WAITING = select(JobRow.rank, _PLACE.label("place"), JobRow.id, JobRow.owner, JobRow.model).where(_WAITS)
# Python lets other threads run after each row of SQLite. A thread that reads a long queue row by row takes
# many times as long while the event loop is busy, and slows it down; one text is one row.
_WAITING_AS_TEXT = select(func.json_group_array(func.json_array(*_WAITING.subquery().c)))
_SERVED = select(KeyRow.id, KeyRow.served).where(KeyRow.id.in_(select(JobRow.owner).where(_WAITS)))
_NEWEST_VERSION = select(func.max(ChangeRow.version))
_OLDEST_TRANSACTION = select(cast(cast(func.pg_snapshot_xmin(func.pg_current_snapshot()), Text), BigInteger))


def _changed_jobs(condition: ColumnElement[bool]) -> Select[Any]:
    """Return the statement for the changed jobs and the identifiers of removed ones."""
    changed = select(ChangeRow.job_id).where(condition).distinct().subquery()
    return select(changed.c.job_id, JobRow.__table__).outerjoin(
        JobRow.__table__, JobRow.id == changed.c.job_id
    )


_AFTER_VERSION = _changed_jobs(ChangeRow.version > bindparam("mark"))
_AFTER_TRANSACTION = _changed_jobs(ChangeRow.transaction_id >= bindparam("mark"))


class JobStore(EditStore, WorkerStore, UpkeepStore):
    """Store of jobs."""

    async def positions(self) -> dict[str, int]:
        """Return the position of each waiting job among those of its model; 1 is next."""
        waiting = await self._database.select(_WAITING if self._database.is_postgres else _WAITING_AS_TEXT)
        served = await self._database.select(_SERVED)

        def computed() -> dict[str, int]:
            rows = waiting if self._database.is_postgres else json.loads(waiting[0][0])
            jobs = [order.QueuedJob(*row) for row in rows]
            return order.positions(jobs, {row.id: row.served for row in served})

        # With a long queue this takes longer than an answer, which must not wait for it.
        return await asyncio.to_thread(computed)

    async def counts(self) -> list[Count]:
        """Return the number of jobs and the oldest one for each model and status."""

        def work(session: Session) -> list[Count]:
            group = (JobRow.model, JobRow.status)
            query = select(*group, func.count(), func.min(JobRow.created_at)).group_by(*group)
            rows = session.execute(query)
            return [Count(model, Status(status), number, oldest) for model, status, number, oldest in rows]

        return await self._database.read(work)

    async def failures(self, since: float, most: int) -> list[Failure]:
        """Return the jobs that failed since a time, the newest first.

        Args:
            since: Time, in Unix seconds.
            most: Number of failures at most.
        """
        columns = (JobRow.id, JobRow.model, JobRow.completed_at, JobRow.error_code, JobRow.error_message)

        def work(session: Session) -> list[Failure]:
            failed = (JobRow.status == Status.FAILED.value, JobRow.completed_at >= since)
            query = select(*columns).where(*failed).order_by(JobRow.completed_at.desc(), JobRow.id.desc())
            rows = session.execute(query.limit(most))
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
            return await self._changed_on_postgres(mark)
        return await self._changed_on_sqlite(mark)

    async def _changed_on_sqlite(self, mark: int | None) -> Changes:
        """Read by version: transactions of SQLite end in the order of their versions."""
        newest = (await self._database.select(_NEWEST_VERSION))[0][0] or 0
        if mark is None or newest <= mark:
            # The newest row of the log may have been pruned.
            return Changes(max(newest, mark or 0))
        return await self._changed(newest, _AFTER_VERSION, mark)

    async def _changed_on_postgres(self, mark: int | None) -> Changes:
        """Read by transaction.

        The mark is the oldest transaction that had not ended when the read before began. All later ones are
        read, so those that were read already come again, but none is missed. The mark is read first: each
        statement sees the transactions that ended before it.
        """
        newest = int((await self._database.select(_OLDEST_TRANSACTION))[0][0])
        if mark is None:
            return Changes(newest)
        return await self._changed(newest, _AFTER_TRANSACTION, mark)

    async def _changed(self, mark: int, after: Select[Any], after_mark: int) -> Changes:
        """Return the jobs of the changes after a mark."""
        rows = await self._database.select(after, {"mark": after_mark})
        jobs = sorted((job_of(row) for row in rows if row.id is not None), key=lambda job: job.version)
        return Changes(mark, jobs, [row.job_id for row in rows if row.id is None])
