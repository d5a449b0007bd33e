"""Creation of jobs: repeated requests find the earlier job, and limits refuse what is too much.

All creations take turns, on PostgreSQL by an advisory lock. Two equal requests at the same time therefore
make one job, and no limit is exceeded by requests that are counted side by side.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from slipway_gateway.access.limits import KeyLimits, check_job, rank
from slipway_gateway.database.tables import JobRow, UsageRow
from slipway_gateway.errors import ApiError
from slipway_gateway.jobs.job import Job, NewJob, Status, Wish
from slipway_gateway.jobs.rows import JobRows, job_of
from slipway_serving.protocol.errors import InvalidRequest, Overloaded

# Numbers of PostgreSQL's advisory locks; any that nothing else in the database uses.
_CREATION_LOCK = 0x736C_6970_0002
_SAME_REQUEST_S = 60.0
_SAME_KEY_S = 86_400.0
_DAY_S = 86_400
_LONGEST_KEY = 255


class CreationStore(JobRows):
    """Store of jobs, as far as it adds them."""

    async def create(self, new: NewJob, limits: KeyLimits, *, max_waiting: int) -> tuple[Job, bool]:
        """Add a job to the queue, or find the one that the same request made before.

        A request is the same if it has the Idempotency-Key of an earlier one within 24 hours, or, without
        such a key, the fingerprint of one within 60 seconds that has neither failed nor been cancelled.
        Deleted jobs do not count.

        Args:
            new: Job to add.
            limits: Limits of its key.
            max_waiting: Number of jobs of all keys that may wait.

        Returns:
            Job, and whether this call has added it.

        Raises:
            InvalidRequest: The job is above a limit of its key, or its Idempotency-Key belongs to another
                request.
            Overloaded: The queue is full, or the key has as many waiting jobs as it may have.
            ApiError: The key has created as many jobs as it may on one day (status 429).
            NotReady: The database cannot be used.
        """
        check_job(new, limits)
        check_text(new)

        def work(session: Session, repeated: bool) -> tuple[Job, bool]:
            self._take_turn_of_creation(session)
            if repeated and (stored := session.get(JobRow, new.id)) is not None:
                return job_of(stored), True
            if (earlier := self._earlier(session, new)) is not None:
                return earlier, False
            self._check_waiting(session, new.owner, limits, max_waiting)
            self._count_day(session, new.owner, limits)
            return self._add(session, new), True

        return await self._database.write(work)

    def _take_turn_of_creation(self, session: Session) -> None:
        """Wait until no other transaction adds a job to the queue."""
        self._take_turn(session, _CREATION_LOCK)

    def _earlier(self, session: Session, new: NewJob) -> Job | None:
        """Return the job that the same request made before."""
        now = self._clock()
        same: list[ColumnElement[bool]] = [JobRow.owner == new.owner, JobRow.wish != Wish.DELETE.value]
        if new.idempotency_key is not None:
            same += [
                JobRow.idempotency_key == new.idempotency_key,
                JobRow.created_at > now - _SAME_KEY_S,
            ]
        else:
            same += [
                JobRow.fingerprint == new.fingerprint,
                JobRow.created_at > now - _SAME_REQUEST_S,
                JobRow.status.not_in([Status.FAILED.value, Status.CANCELLED.value]),
            ]
        row = session.scalar(
            select(JobRow).where(*same).order_by(JobRow.created_at.desc(), JobRow.id.desc()).limit(1)
        )
        if row is None:
            return None
        if row.fingerprint != new.fingerprint:
            raise InvalidRequest(
                f"video: idempotency_key must be new for another request, got that of {row.id}; try a new key"
            )
        return job_of(row)

    def _check_waiting(
        self, session: Session, owner: str, limits: KeyLimits, max_waiting: int | None
    ) -> None:
        """Refuse one more waiting job if there are too many."""
        waits = JobRow.status == Status.QUEUED.value
        number = session.scalar(select(func.count()).select_from(JobRow).where(waits)) or 0
        if max_waiting is not None and number >= max_waiting:
            raise Overloaded(
                f"video: the queue is full with {number} waiting videos; try again in a few seconds"
            )
        if limits.waiting is None:
            return
        own = select(func.count()).select_from(JobRow).where(waits, JobRow.owner == owner)
        if (session.scalar(own) or 0) >= limits.waiting:
            raise Overloaded(
                f"video: this key may have {limits.waiting} waiting videos, and has as many; try again when"
                " one of them has started"
            )

    def _count_day(self, session: Session, owner: str, limits: KeyLimits) -> None:
        """Count one more job of this day, and refuse it if it is one too many."""
        now = self._clock()
        day = int(now // _DAY_S)
        usage = session.get(UsageRow, (owner, day))
        if usage is None:
            usage = UsageRow(owner=owner, day=day, jobs=0)
            session.add(usage)
        if limits.jobs_per_day is not None and usage.jobs >= limits.jobs_per_day:
            raise ApiError(
                f"video: this key may create {limits.jobs_per_day} videos a day, and has created as many; try"
                " again after midnight UTC",
                status=429,
                code="daily_limit",
                retry_after_s=(day + 1) * _DAY_S - now,
                final=True,
            )
        usage.jobs += 1

    def _add(self, session: Session, new: NewJob) -> Job:
        now = self._clock()
        values: dict[str, Any] = dict(vars(new))
        row = JobRow(
            **values,
            status=Status.QUEUED.value,
            rank=rank(new.priority),
            created_at=now,
            queued_at=now,
            version=self._log_change(session, new.id),
        )
        session.add(row)
        session.flush()
        return job_of(row)


def check_text(new: NewJob) -> None:
    """Check the texts of a caller that are stored as text, which PostgreSQL refuses with U+0000."""
    for name in ("idempotency_key", "webhook_url", "traceparent"):
        value = getattr(new, name)
        if value is not None and not value.isprintable():
            raise InvalidRequest(f"video: {name} must consist of printable characters, got {value[:80]!r}")
    if new.idempotency_key is not None and len(new.idempotency_key) > _LONGEST_KEY:
        raise InvalidRequest(
            f"video: idempotency_key must be at most {_LONGEST_KEY} characters, got"
            f" {len(new.idempotency_key)}; try a UUID"
        )
