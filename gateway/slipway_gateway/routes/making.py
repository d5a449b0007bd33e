"""Routes that make videos: create, create and wait, vary, pause and resume."""

# FastAPI evaluates the annotations of the routes, which name local dependencies.

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from slipway_gateway.access.keys import Key
from slipway_gateway.errors import conflict
from slipway_gateway.fields.resuming import resumed_values
from slipway_gateway.jobs.job import Job, Status, Wish
from slipway_gateway.routes.answers import POLL_HEADER, POLL_MS, VideoAnswer, video_answer
from slipway_gateway.routes.bodies import read_fields, read_json
from slipway_gateway.routes.creating import IDEMPOTENCY_HEADER, create_job, remix_fields
from slipway_gateway.routes.openapi import creation_body, errors, remix_body, resume_body
from slipway_gateway.routes.own_jobs import OwnJobs
from slipway_gateway.routes.waiting_calls import wait_for_video
from slipway_gateway.services import Services

_CREATION_ERRORS = (400, 404, 409, 413, 415, 429)


def router(services: Services, own: OwnJobs) -> APIRouter:
    """Return the routes below ``/v1/videos`` that make or change a job.

    Args:
        services: Services of the process.
        own: Access of callers to their jobs.
    """
    settings, store, kinds = services.settings, services.store, services.kinds
    routes = APIRouter(prefix="/v1/videos", tags=["videos"])

    async def answer(job: Job, response: Response) -> VideoAnswer:
        response.headers[POLL_HEADER] = POLL_MS
        return video_answer(job, await services.position(job))

    async def made(request: Request, key: Key, remixed: Job | None = None) -> Job:
        fields = await read_fields(request, "videos", settings.max_body_bytes)
        return await create_job(
            services,
            key,
            fields if remixed is None else await remix_fields(services, remixed, fields),
            idempotency_key=request.headers.get(IDEMPOTENCY_HEADER),
            traceparent=request.headers.get("traceparent"),
            remixed_from=remixed,
        )

    @routes.post("", responses=errors(*_CREATION_ERRORS), openapi_extra=creation_body(kinds))
    async def create_video(
        request: Request, response: Response, key: Annotated[Key, Depends(own.key)]
    ) -> VideoAnswer:
        """Create a job that makes a video.

        The answer comes at once; the job is then queued. A repeated request with the same fields within a
        minute, or with the same `Idempotency-Key`, returns the job that exists already.
        """
        return await answer(await made(request, key), response)

    @routes.post(
        "/sync",
        responses={
            200: {"content": {"video/mp4": {}}, "description": "The video."},
            **errors(*_CREATION_ERRORS, 422, 500, 504),
        },
        response_class=Response,
        openapi_extra=creation_body(kinds),
    )
    async def create_and_wait(request: Request, key: Annotated[Key, Depends(own.key)]) -> Response:
        """Create a job, wait for its video and return the file. A caller who leaves cancels the job."""
        return await wait_for_video(services, await made(request, key), request)

    @routes.post("/{video_id}/remix", responses=errors(*_CREATION_ERRORS), openapi_extra=remix_body(kinds))
    async def remix_video(
        request: Request,
        response: Response,
        job: Annotated[Job, Depends(own.job)],
        key: Annotated[Key, Depends(own.key)],
    ) -> VideoAnswer:
        """Create a job with the fields of another one, but for those that are given. The seed stays."""
        return await answer(await made(request, key, job), response)

    @routes.post("/{video_id}/pause", responses=errors(404, 409))
    async def pause_video(response: Response, job: Annotated[Job, Depends(own.job)]) -> VideoAnswer:
        """Pause a job: a waiting one leaves the queue, a running one stops at its next step."""
        if job.status is Status.IN_PROGRESS and not kinds[job.model].can_stop:
            raise conflict(f"videos: {job.model} cannot be paused while it runs", "cannot_pause")
        return await answer(await store.ask(job.id, job.owner, Wish.PAUSE), response)

    @routes.post(
        "/{video_id}/resume", responses=errors(400, 404, 409, 415, 429), openapi_extra=resume_body(kinds)
    )
    async def resume_video(
        request: Request,
        response: Response,
        job: Annotated[Job, Depends(own.job)],
        key: Annotated[Key, Depends(own.key)],
    ) -> VideoAnswer:
        """Resume a paused job from its state, with other values of the fields that may change."""
        changes: dict[str, Any] = await read_json(request, "videos")
        values = resumed_values(kinds[job.model], job, changes) if job.status is Status.PAUSED else {}
        resumed = await store.resume(
            job.id, job.owner, values, limits=key.limits, max_waiting=settings.max_waiting
        )
        return await answer(resumed, response)

    return routes
