"""Routes of a key's jobs: list, look, download, delete.

A job of another key does not exist for a caller.
"""

# FastAPI evaluates the annotations of the routes, which name local dependencies.

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import StreamingResponse

from slipway_gateway.access.keys import Key
from slipway_gateway.errors import ApiError
from slipway_gateway.jobs.job import Job, Status, Wish
from slipway_gateway.routes.answers import (
    POLL_HEADER,
    POLL_MS,
    VideoAnswer,
    VideoDeleted,
    VideoList,
    video_answer,
)
from slipway_gateway.routes.content import content_response
from slipway_gateway.routes.openapi import errors
from slipway_gateway.routes.own_jobs import OwnJobs
from slipway_gateway.services import Services
from slipway_serving.protocol.texts import short

_MOST_LISTED = 100
Variant = Literal["video", "thumbnail", "spritesheet", "draft", "input", "input_2", "input_3", "input_4"]


def router(services: Services, own: OwnJobs) -> APIRouter:
    """Return the routes below ``/v1/videos`` that need a job.

    Args:
        services: Services of the process.
        own: Access of callers to their jobs.
    """
    routes = APIRouter(prefix="/v1/videos", tags=["videos"])

    @routes.get("", responses=errors(400))
    async def list_videos(
        key: Annotated[Key, Depends(own.key)],
        after: Annotated[str | None, Query(description="Id of the last job of the page before.")] = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_LISTED, description="Number of jobs.")] = 20,
        order: Annotated[Literal["asc", "desc"], Query(description="Order of the creation times.")] = "desc",
    ) -> VideoList:
        """List the jobs of the key, the newest first."""
        try:
            jobs, has_more = await services.store.list(key.id, after=after, limit=limit, order=order)
        except ApiError:
            raise ApiError(
                f"videos: after must be the id of one of your jobs, got {short(after)}; try leaving it out",
                status=400,
                code="invalid_value",
                param="after",
                final=True,
            ) from None
        data = [video_answer(job, await services.position(job)) for job in jobs]
        return VideoList(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=has_more,
        )

    @routes.get("/{video_id}", responses=errors(404))
    async def get_video(response: Response, job: Annotated[Job, Depends(own.job)]) -> VideoAnswer:
        """Return a job."""
        response.headers[POLL_HEADER] = POLL_MS
        return video_answer(job, await services.position(job))

    @routes.delete("/{video_id}", responses=errors(404))
    async def delete_video(job: Annotated[Job, Depends(own.job)]) -> VideoDeleted:
        """Delete a job and its contents. A running one stops at its next step."""
        deleted = await services.store.ask(job.id, job.owner, Wish.DELETE)
        if deleted.status is not Status.IN_PROGRESS:
            await services.contents.delete(job.id)
            await services.store.remove(job.id)
        return VideoDeleted(id=job.id)

    @routes.get(
        "/{video_id}/content",
        response_class=StreamingResponse,
        responses={
            200: {
                "description": "The file.",
                "content": {
                    **{kind: {} for kind in ("video/mp4", "image/webp", "image/jpeg", "image/png")},
                    "application/octet-stream": {},
                },
            },
            206: {"description": "The asked part of the file."},
            304: {"description": "The caller has the file already."},
            **errors(400, 404, 409, 416),
        },
    )
    async def get_content(
        request: Request,
        job: Annotated[Job, Depends(own.job)],
        variant: Annotated[Variant, Query(description="File to download.")] = "video",
    ) -> Response:
        """Download the video, its thumbnail, its sprite sheet, its draft, or a picture of its request."""
        return await content_response(services, job, variant, request)

    return routes
