"""Calls that wait for a job: `POST /v1/videos/sync`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from slipway_gateway.errors import ApiError
from slipway_gateway.jobs.job import Job, Status, Wish
from slipway_gateway.routes.content import content_response
from slipway_gateway.services import Services
from slipway_serving.protocol.errors import SlipwayError

ID_HEADER = "x-video-id"
_CALLERS_FAULT = "invalid_argument"


async def wait_for_video(services: Services, job: Job, request: Request) -> Response:
    """Wait for a job and return its video.

    Args:
        services: Services of the process.
        job: Job of the caller.
        request: Request of the caller; if its connection ends, the job is cancelled.

    Raises:
        ApiError: The job failed, was stopped, or is not finished within the time limit.
    """
    done = await _until_done(services, job, request)
    if done is None:
        raise ApiError(
            f"videos: {job.id} is not finished after {services.settings.sync_timeout_s:g} s; it goes on: try"
            f" GET /v1/videos/{job.id}",
            status=504,
            code="timeout",
            final=True,
        )
    if done.status is not Status.COMPLETED:
        is_callers = done.error_code == _CALLERS_FAULT
        raise ApiError(
            done.error_message or f"videos: {done.id} is {done.status.value}",
            status=422 if is_callers else 409 if done.status is not Status.FAILED else 500,
            code=done.error_code or f"video_{done.status.value}",
            final=True,
        )
    response = await content_response(services, done, "video", request)
    response.headers[ID_HEADER] = done.id
    response.headers["x-inference-time-s"] = f"{done.inference_time_s:.3f}"
    response.headers["x-stage-durations"] = json.dumps(
        {name: round(seconds, 3) for name, seconds in done.stage_durations.items()}
    )
    return response


async def _until_done(services: Services, job: Job, request: Request) -> Job | None:
    """Return the job when it has ended or is paused; None if the time is over."""
    watching = asyncio.ensure_future(_watch(services, job))
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        finished, _ = await asyncio.wait(
            {watching, leaving},
            timeout=services.settings.sync_timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if watching in finished:
            return await watching
        if leaving in finished:
            with contextlib.suppress(SlipwayError):
                await services.store.ask(job.id, job.owner, Wish.CANCEL)
            raise ApiError(f"videos: the caller of {job.id} left", status=499, code="cancelled")
        return None
    finally:
        for task in (watching, leaving):
            task.cancel()
        await asyncio.gather(watching, leaving, return_exceptions=True)


async def _watch(services: Services, job: Job) -> Job:
    latest = job
    async for latest in services.feed.watch(job.id):
        if latest.status.is_final or latest.status is Status.PAUSED:
            return latest
    raise ApiError(f"videos: {latest.id} was deleted", status=409, code="video_deleted", final=True)


async def _disconnected(request: Request) -> None:
    while True:
        message: Any = await request.receive()
        if message["type"] == "http.disconnect":
            return
