"""Changes of rows in the table of jobs, which every store of jobs is built on.

A change locks the row, adds a row to the log of changes, whose number is the job's new version, and notifies
PostgreSQL's listeners in the same transaction. A job that ends gets its time of expiry and its webhook there,
too, so neither can be lost between two transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Row, Text, cast, func, insert, select
from sqlalchemy.orm import Session

from slipway_gateway.database.engine import CHANNEL, Database
from slipway_gateway.database.tables import ChangeRow, Delivery, JobRow
from slipway_gateway.jobs.job import Job, Status, Wish

KEEP_S = 86_400.0
"""Default time that a finished job and its contents stay, in seconds."""
_COLUMNS = tuple(field.name for field in fields(Job) if field.name not in {"status", "wish"})


def job_of(row: JobRow | Row[Any]) -> Job:
    """Return a copy of a row that does not change with it; a row of :meth:`Database.select` is one, too."""
    values = {name: getattr(row, name) for name in _COLUMNS}
    return Job(status=Status(row.status), wish=Wish(row.wish), **values)


class JobRows:
    """Base of the stores of jobs.

    Args:
        database: Database with the table.
        keep_s: Time that a finished or paused job stays, in seconds.
        clock: Function that returns the time in Unix seconds. By default it is this machine's clock, and that
            of PostgreSQL for leases, which several machines have to agree on.
    """

    def __init__(
        self, database: Database, *, keep_s: float = KEEP_S, clock: Callable[[], float] | None = None
    ) -> None:
        self._database = database
        self._keep_s = keep_s
        self._clock = clock or time.time
        self._asks_database = clock is None and database.is_postgres

    def _lease_time(self, session: Session) -> float:
        """Return the time that leases are measured with, in Unix seconds."""
        if not self._asks_database:
            return self._clock()
        return float(session.scalar(select(func.extract("epoch", func.clock_timestamp()))) or 0.0)

    def _take_turn(self, session: Session, number: int) -> None:
        """Wait until no other transaction has the lock of this number; SQLite has one writer anyway."""
        if self._database.is_postgres:
            session.execute(select(func.pg_advisory_xact_lock(number)))

    def _locked(self, session: Session, *conditions: ColumnElement[bool], skip: bool = False) -> list[JobRow]:
        """Return the rows that meet all conditions, locked until the end of the transaction.

        Args:
            session: Session of the transaction.
            *conditions: Conditions, which also hold for rows that other transactions have just changed.
            skip: True for at most 100 rows, without those that other transactions have locked.
        """
        # All writers lock rows in the same order, so that no two of them wait for each other.
        query = select(JobRow).where(*conditions).order_by(JobRow.id).limit(100 if skip else None)
        rows = session.scalars(
            query.with_for_update(skip_locked=skip).execution_options(populate_existing=True)
        )
        return list(rows)

    def _log_change(self, session: Session, job_id: str) -> int:
        """Add a row to the log of changes and return its number."""
        values: dict[str, Any] = {"job_id": job_id, "at": self._clock()}
        if not self._database.is_postgres:
            query = insert(ChangeRow).values(values).returning(ChangeRow.version)
            return int(session.execute(query).scalar_one())
        values["transaction_id"] = cast(cast(func.pg_current_xact_id(), Text), BigInteger)
        notify = func.pg_notify(CHANNEL, job_id)
        result = session.execute(insert(ChangeRow).values(values).returning(ChangeRow.version, notify))
        return int(result.one()[0])

    def _change(self, session: Session, row: JobRow, **values: Any) -> Job:
        """Write values to a locked row as a new version, and return the job.

        Args:
            session: Session of the transaction.
            row: Row, locked by :meth:`_locked`.
            **values: New values of columns.
        """
        row.version = self._log_change(session, row.id)
        for name, value in values.items():
            setattr(row, name, value)
        session.flush()
        return job_of(row)

    def _end(
        self,
        session: Session,
        row: JobRow,
        status: Status,
        *,
        expires_at: float | None = None,
        **values: Any,
    ) -> Job:
        """Bring a locked row to a final status, and add its webhook if it has one.

        Args:
            session: Session of the transaction.
            row: Row, locked by :meth:`_locked`.
            status: Final status.
            expires_at: Time of expiry, in Unix seconds; by default that of the store.
            **values: New values of other columns.
        """
        now = self._clock()
        deleted = row.wish == Wish.DELETE
        job = self._change(
            session,
            row,
            status=status.value,
            completed_at=now,
            expires_at=now + self._keep_s if expires_at is None else expires_at,
            lease_until=None,
            wish=(Wish.DELETE if deleted else Wish.NONE).value,
            **values,
        )
        if job.webhook_url is not None and not deleted:
            session.add(delivery(job, now))
            session.flush()
        return job

    def _stopped(self, session: Session, row: JobRow, status: Status, **values: Any) -> Job:
        """Take a locked job from its worker, and meet the caller's wish.

        Args:
            session: Session of the transaction.
            row: Row, locked by :meth:`_locked`.
            status: Status without a wish: queued or paused.
            **values: New values of other columns.
        """
        if row.wish in {Wish.CANCEL.value, Wish.DELETE.value}:
            return self._end(session, row, Status.CANCELLED, **values)
        paused = status is Status.PAUSED or row.wish == Wish.PAUSE.value
        return self._change(
            session,
            row,
            status=(Status.PAUSED if paused else Status.QUEUED).value,
            wish=Wish.NONE.value,
            phase=None,
            step=row.step if paused else row.state_step or 0,
            lease_until=None,
            queued_at=0.0,
            expires_at=self._clock() + self._keep_s if paused else None,
            **values,
        )


def delivery(job: Job, now: float) -> Delivery:
    """Return the webhook of a job that has just ended.

    A job ends once, so its identifier makes that of the delivery.

    Args:
        job: Job with a final status and an address.
        now: Time of its end, in Unix seconds.
    """
    event = f"video.{job.status.value}"
    error = None
    if job.status is Status.FAILED:
        error = {"code": job.error_code, "message": job.error_message}
    return Delivery(
        id=f"msg_{job.id.removeprefix('video_')}",
        job_id=job.id,
        owner=job.owner,
        url=job.webhook_url,
        event=event,
        payload={
            "type": event,
            "timestamp": datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z"),
            "data": {"id": job.id, "status": job.status.value, "model": job.model, "error": error},
        },
        created_at=now,
        next_at=now,
    )


def added_durations(before: Mapping[str, float], run: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds per stage of all runs, the last one included."""
    return {stage: before.get(stage, 0.0) + run.get(stage, 0.0) for stage in (*before, *run)}


def storable(text: str) -> str:
    """Return a text without the characters that PostgreSQL cannot store: U+0000 and lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
