"""Progress of a job as server-sent events, which a browser and curl show while the job runs."""

# FastAPI evaluates the annotations of the routes, which name local dependencies.

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic_core import to_json

from slipway_gateway.jobs.job import Job, Status
from slipway_gateway.routes.answers import video_answer
from slipway_gateway.routes.openapi import errors
from slipway_gateway.routes.own_jobs import OwnJobs
from slipway_gateway.services import Services

_POSITION_S = 2.0
"""Mean time between two looks at a waiting job's place in the queue, in seconds."""


def router(services: Services, own: OwnJobs) -> APIRouter:
    """Return the route of a job's events."""
    routes = APIRouter(prefix="/v1/videos", tags=["videos"])

    @routes.get("/{video_id}/events", response_class=EventSourceResponse, responses=errors(404))
    async def video_events(job: Annotated[Job, Depends(own.job)]) -> AsyncIterator[ServerSentEvent]:
        """Follow a job: an event for each change, with phase, step, preview and place in the queue.

        The stream ends with the event `video.completed`, `video.failed`, `video.cancelled` or
        `video.deleted`.
        """
        async for event in _events(services, job):
            yield event

    return routes


async def _events(services: Services, job: Job) -> AsyncIterator[ServerSentEvent]:
    changes = aiter(services.feed.watch(job.id))
    pending: asyncio.Future[Job] | None = None
    latest, told = job, None
    seen: tuple[int, int | None] | None = None
    shown_preview = -1
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(changes))
            # Watchers that came together must not look together: many at once would stop all other answers.
            done, _ = await asyncio.wait({pending}, timeout=_POSITION_S * random.uniform(0.5, 1.5))
            if done:
                try:
                    latest = pending.result()
                except StopAsyncIteration:
                    break
                finally:
                    pending = None
            position = await services.position(latest)
            if (latest.version, position) == seen:
                continue
            seen = latest.version, position
            content = video_answer(latest, position).model_dump()
            if content == told:
                continue
            told = dict(content)
            if latest.status is Status.IN_PROGRESS and latest.step != shown_preview:
                shown_preview = latest.step
                preview = await services.store.preview(latest.id)
                if preview is not None:
                    content["preview"] = "data:image/jpeg;base64," + base64.b64encode(preview[1]).decode()
            text = to_json(content).decode()
            yield ServerSentEvent(raw_data=text, event=_name(latest), id=str(latest.version))
            if latest.status.is_final:
                return
        yield ServerSentEvent(data={"id": job.id, "deleted": True}, event="video.deleted")
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        await changes.aclose()  # type: ignore[attr-defined]  # every watch is a generator


def _name(job: Job) -> str:
    return f"video.{job.status.value}" if job.status is not Status.IN_PROGRESS else "video.progress"
