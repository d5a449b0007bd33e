"""Edits of jobs that do not run: other fields of the request, another priority, another place in the queue.

An edit and a move are one transaction. It locks the rows before it looks at their status, so a worker gets
either the job as it was or the edited one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from sqlalchemy.orm import Session

from slipway_gateway.access.limits import KeyLimits, check_job, rank
from slipway_gateway.database.tables import JobRow
from slipway_gateway.errors import ApiError, conflict
from slipway_gateway.jobs.caller_store import CallerStore
from slipway_gateway.jobs.creation import check_text
from slipway_gateway.jobs.job import Job, NewJob, Place, Status, Wish
from slipway_gateway.jobs.order import distinct_times
from slipway_gateway.jobs.rows import job_of
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.texts import short

StorePictures = Callable[[], Coroutine[Any, Any, None]]
"""Function that stores pictures of a job in place of those before."""
_EDITED = (
    "request",
    "parameters",
    "seed",
    "width",
    "height",
    "frames",
    "fps",
    "steps",
    "priority",
    "webhook_url",
    "fingerprint",
)


class EditStore(CallerStore):
    """Store of jobs, as far as callers edit them and change their order."""

    async def edit(
        self,
        job: Job,
        edited: NewJob | None,
        limits: KeyLimits,
        *,
        place: Place | None = None,
        store_pictures: StorePictures | None = None,
    ) -> Job:
        """Give a waiting or paused job other fields, and a waiting one another place in the queue.

        Args:
            job: Job as the caller saw it.
            edited: Fields of the job from now on; its id and owner are those of the job. None changes none.
            limits: Limits of the key, which the edited job must keep like a new one.
            place: Place in the queue among the jobs of the key with the same priority; None keeps it.
            store_pictures: Function that is called before the fields change, while no worker can take it.

        Raises:
            ApiError: The job does not exist (status 404), runs, has ended, or was edited meanwhile (409).
            InvalidRequest: A field is above a limit of the key, or the place is not in the queue.
        """
        if edited is not None:
            check_job(edited, limits)
            check_text(edited)

        def work(session: Session, repeated: bool) -> Job:
            row = self._own(session, job.id, job.owner)
            _check_status(Status(row.status), job.id, moves=place is not None)
            values: dict[str, Any] = {}
            if edited is not None:
                values = {name: getattr(edited, name) for name in _EDITED}
                values["rank"] = rank(edited.priority)
                if row.request != job.request and not (repeated and row.request == edited.request):
                    raise ApiError(
                        f"video {job.id} was changed by another request; look at it and send yours again",
                        status=409,
                        code="video_changed",
                        final=True,
                    )
                if store_pictures is not None:
                    self._database.wait_in_work(store_pictures())
            if place is not None:
                values["queued_at"] = self._make_place(session, row, values.get("rank"), place)
            return self._change(session, row, **values) if values else job_of(row)

        return await self._database.write(work)

    def _make_place(self, session: Session, row: JobRow, new_rank: int | None, place: Place) -> float:
        """Move the other waiting jobs of a key, and return the time that is the place of a job.

        The jobs exchange their times, so that a moved job never comes before or behind jobs of other keys
        that it had nothing to do with.
        """
        waits = JobRow.status == Status.QUEUED.value
        wanted_rank = row.rank if new_rank is None else new_rank
        rows = self._locked(session, JobRow.owner == row.owner, waits, JobRow.wish != Wish.DELETE.value)
        others = sorted(
            (each for each in rows if each.rank == wanted_rank and each.id != row.id),
            key=lambda each: (each.queued_at, each.created_at, each.id),
        )
        position = len(others)
        if place.before is not None:
            found = [index for index, each in enumerate(others) if each.id == place.before]
            if not found:
                raise InvalidRequest(
                    f"videos: before must be the id of another waiting video of yours with the same priority,"
                    f" got {short(place.before)}; try null, which is the end of the queue"
                )
            position = found[0]
        line = [*others[:position], row, *others[position:]]
        times = distinct_times(sorted(each.queued_at for each in line))
        own = times[position]
        for each, time_s in zip(line, times, strict=True):
            # Other rows keep their versions: the order of the queue is read again after any change in it.
            if each is not row:
                each.queued_at = time_s
        return own


def _check_status(status: Status, job_id: str, *, moves: bool) -> None:
    """Refuse an edit that the status of the job does not allow."""
    if moves and status is not Status.QUEUED:
        raise conflict(f"video {job_id} is {status}; only a waiting video can be moved", f"video_{status}")
    if status not in {Status.QUEUED, Status.PAUSED}:
        raise conflict(
            f"video {job_id} is {status}, and only a waiting or paused video can be edited; try a duplicate",
            f"video_{status}",
        )
