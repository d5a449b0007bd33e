"""Routes for a queue of videos: edit a waiting job, move it, and duplicate any job."""

# FastAPI evaluates the annotations of the routes, which name local dependencies.

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from slipway_gateway.access.keys import Key
from slipway_gateway.fields.creation import create
from slipway_gateway.fields.resuming import resumed_values
from slipway_gateway.jobs.edit_store import StorePictures
from slipway_gateway.jobs.job import Job, NewJob, Place
from slipway_gateway.routes.answers import POLL_HEADER, POLL_MS, VideoAnswer, video_answer
from slipway_gateway.routes.bodies import read_fields
from slipway_gateway.routes.creating import (
    IDEMPOTENCY_HEADER,
    WEBHOOK,
    checked_webhook,
    create_job,
    fingerprint,
    job_fields,
    put_pictures,
    replaced_by,
    with_pictures,
)
from slipway_gateway.routes.openapi import BEFORE, duplicate_body, edit_body, errors
from slipway_gateway.routes.own_jobs import OwnJobs
from slipway_gateway.services import Services
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.texts import short

_OF_A_STOP = ("stop_after_step", "draft")


def router(services: Services, own: OwnJobs) -> APIRouter:
    """Return the routes below ``/v1/videos`` that edit the queue.

    Args:
        services: Services of the process.
        own: Access of callers to their jobs.
    """
    settings, kinds = services.settings, services.kinds
    routes = APIRouter(prefix="/v1/videos", tags=["videos"])

    async def answer(job: Job, response: Response) -> VideoAnswer:
        response.headers[POLL_HEADER] = POLL_MS
        return video_answer(job, await services.position(job))

    @routes.patch("/{video_id}", responses=errors(400, 404, 409, 413, 415), openapi_extra=edit_body(kinds))
    async def edit_video(
        request: Request,
        response: Response,
        job: Annotated[Job, Depends(own.job)],
        key: Annotated[Key, Depends(own.key)],
    ) -> VideoAnswer:
        """Edit a waiting or paused job, or move a waiting one in the queue.

        Fields that are left out stay as they are, and null gives a field its usual value. A job with a state
        changes only the fields that may change when it is resumed. `before` moves the job in front of another
        waiting one of the same key.
        """
        fields = await read_fields(request, "videos", settings.max_body_bytes)
        place = _place(fields.pop(BEFORE)) if BEFORE in fields else None
        edited, store_pictures = await _edited(services, key, job, fields) if fields else (None, None)
        done = await services.store.edit(job, edited, key.limits, place=place, store_pictures=store_pictures)
        services.feed.forget_positions()
        return await answer(done, response)

    @routes.post(
        "/{video_id}/duplicate",
        responses=errors(400, 404, 409, 413, 415, 429),
        openapi_extra=duplicate_body(kinds),
    )
    async def duplicate_video(
        request: Request,
        response: Response,
        job: Annotated[Job, Depends(own.job)],
        key: Annotated[Key, Depends(own.key)],
    ) -> VideoAnswer:
        """Create a job with all fields of another one, the seed and the webhook included.

        The body may give other values. Each call creates a job, unless an `Idempotency-Key` is repeated.
        """
        has_body = bool((await request.body()).strip())
        changes = await read_fields(request, "videos", settings.max_body_bytes) if has_body else {}
        fields = await job_fields(services, job, changes)
        fields.setdefault(WEBHOOK, job.webhook_url)
        copy = await create_job(
            services,
            key,
            fields,
            idempotency_key=request.headers.get(IDEMPOTENCY_HEADER),
            traceparent=request.headers.get("traceparent"),
            remixed_from=job,
            is_distinct=True,
        )
        return await answer(copy, response)

    return routes


def _place(value: Any) -> Place:
    """Return the place in the queue that a caller gives."""
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(
            f"videos: {BEFORE} must be the id of a waiting video or null, got {short(value)}; try null"
        )
    return Place(value or None)


async def _edited(
    services: Services, key: Key, job: Job, changes: Mapping[str, Any]
) -> tuple[NewJob, StorePictures | None]:
    """Return a job's fields after the changes of its caller, and the function that stores its new pictures.

    Raises:
        InvalidRequest: A field is unknown, breaks its rule, or must not change.
        ApiError: The picture of the job does not exist any more.
    """
    given = dict(changes)
    if (model := given.pop("model", job.model)) != job.model:
        raise InvalidRequest(
            f"videos: model must stay {job.model}, got {short(model)}; try a new video with this model"
        )
    webhook_url = job.webhook_url
    if WEBHOOK in given:
        webhook_url = await checked_webhook(services, key, given.pop(WEBHOOK))
    if job.state_step is not None:
        return _edited_run(services, job, given, webhook_url), None
    kind = services.kinds[job.model]
    given = await with_pictures(services, given)
    fields = await job_fields(services, job, given)
    del fields["model"]
    served = (await services.catalog.models())[job.model]
    made = create(kind, fields, served, key.limits.priority)
    replaced = {own for name in given for own in (name, *replaced_by(name, kind))}
    kept = {name: value for name, value in job.parameters.items() if name not in replaced}
    edited = NewJob(
        id=job.id,
        owner=job.owner,
        model=job.model,
        request=made.values,
        parameters=kept
        | {name: value for name, value in given.items() if not isinstance(value, bytes | None)},
        seed=made.seed,
        width=made.width,
        height=made.height,
        frames=made.frames,
        fps=made.fps,
        steps=made.steps,
        priority=str(made.values.get("priority") or "normal"),
        webhook_url=webhook_url,
        fingerprint=fingerprint(job.model, fields, None),
    )
    new = {
        own for name, value in given.items() if isinstance(value, bytes) for own in replaced_by(name, kind)
    }
    pictures = {
        picture.content: made.pictures[picture.content]
        for name, picture in kind.pictures.items()
        if name in new
    }
    return edited, partial(put_pictures, services.contents, job.id, pictures) if pictures else None


def _edited_run(services: Services, job: Job, changes: Mapping[str, Any], webhook_url: str | None) -> NewJob:
    """Return the fields of a job with a state, of which only some may change."""
    kept = {name: job.request[name] for name in _OF_A_STOP if name in job.request}
    values = kept | resumed_values(services.kinds[job.model], job, changes)
    return NewJob(
        id=job.id,
        owner=job.owner,
        model=job.model,
        request={name: values.get(name) for name in job.request} | values,
        parameters=job.parameters | dict(changes),
        seed=job.seed,
        width=job.width,
        height=job.height,
        frames=job.frames,
        fps=float(values.get("fps") or job.fps),
        steps=job.steps,
        priority=str(values.get("priority") or job.priority),
        webhook_url=webhook_url,
        fingerprint=fingerprint(job.model, values, None),
    )
