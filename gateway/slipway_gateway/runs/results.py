"""Contents that a run makes: the video with its settings in the file, and drafts.

A model that yields frames has them encoded here, so that every job ends with an MP4 file.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from slipway_client import ContactSheet, Frames, Video
from slipway_gateway.contents.store import ContentStore
from slipway_gateway.contents.video_settings import VideoSettings, with_settings
from slipway_gateway.jobs.job import Job
from slipway_gateway.jobs.store import JobStore
from slipway_serving.protocol import distribution
from slipway_serving.protocol.snapshots.denoising_states import Origin
from slipway_serving.video.mp4 import Mp4Encoder

VIDEO, DRAFT = "video", "draft"
_MP4 = "video/mp4"


async def store_video(
    contents: ContentStore, job: Job, result: Video | Frames, origin: Origin | None
) -> None:
    """Store a finished video. Its pictures are made when somebody first asks for one.

    Args:
        contents: Store of the contents.
        job: Job of the video.
        result: Result of the server.
        origin: Models that made it, if a state has told.
    """
    settings = settings_of(job, origin)
    data = await asyncio.to_thread(lambda: with_settings(_encoded(result, job.fps), settings))
    await contents.put(job.id, VIDEO, data, _MP4)


async def store_draft(
    contents: ContentStore, store: JobStore, job: Job, worker: str, draft: ContactSheet | Video | Frames
) -> None:
    """Store the draft of a video that stops."""
    if isinstance(draft, ContactSheet):
        await contents.put(job.id, DRAFT, draft.sheet, "image/png")
    else:
        data = await asyncio.to_thread(_encoded, draft, job.fps)
        await contents.put(job.id, DRAFT, data, _MP4)
    await store.draft_saved(job.id, worker, int(draft.draft_step or 0))


def settings_of(job: Job, origin: Origin | None) -> VideoSettings:
    """Return what is written into a video's file, from which the video can be made again."""
    values = {name: value for name, value in job.request.items() if value is not None}
    return VideoSettings(
        request=values,
        model=job.model,
        manifest_digest=None if origin is None else origin.files,
        versions={
            distribution.NAME: version(distribution.NAME),
            **({} if origin is None else origin.engines),
        },
    )


def _encoded(result: Video | Frames, fps: float) -> bytes:
    """Return the MP4 file of a result."""
    if isinstance(result, Video):
        return result.data
    height, width = result.array.shape[1:3]
    with Mp4Encoder(width, height, round(fps)) as encoder:
        encoder.add(result.array)
        return encoder.finish()
