"""Answers of the API about videos, in the form that clients of the video API read."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from slipway_gateway.jobs.job import Job, Status

POLL_HEADER, POLL_MS = "openai-poll-after-ms", "1000"
"""Header that tells clients how long to wait before they look at a job again, and its value."""
_STATUSES = Literal["queued", "in_progress", "paused", "completed", "failed", "cancelled"]


class ErrorDetail(BaseModel):
    """What is wrong with a request."""

    message: str = Field(description="Sentence that names the field, its rule and the value.")
    type: str = Field(description="Kind of the error.")
    param: str | None = Field(description="Field that the error is about.")
    code: str = Field(description="Name of the error for programs.")


class ErrorAnswer(BaseModel):
    """Answer to a request that failed."""

    error: ErrorDetail


class VideoError(BaseModel):
    """Reason why a video failed."""

    code: str
    message: str


class VideoAnswer(BaseModel):
    """A job that makes a video."""

    model_config = ConfigDict(protected_namespaces=())

    id: str
    object: Literal["video"] = "video"
    model: str = Field(description="Served model that makes the video.")
    status: _STATUSES
    progress: int = Field(ge=0, le=100, description="Share of the finished steps, in percent.")
    phase: str | None = Field(description="What the job does at the moment.")
    step: int = Field(description="Number of finished steps.")
    steps: int = Field(description="Number of steps.")
    created_at: int = Field(description="Unix time of the creation, in seconds.")
    started_at: int | None = Field(description="Unix time at which the work first began.")
    completed_at: int | None = Field(description="Unix time of the end.")
    expires_at: int | None = Field(description="Unix time at which job and contents are deleted.")
    seconds: str = Field(description="Length of the video, in seconds.")
    size: str = Field(description="Width and height, in pixels: WIDTHxHEIGHT.")
    frames: int = Field(description="Number of frames.")
    fps: float = Field(description="Frames per second.")
    error: VideoError | None
    inference_time_s: float | None = Field(
        description="Time that servers worked on the job, in seconds; null before a run has ended."
    )
    stage_durations: dict[str, float] = Field(description="Time of each phase, in seconds.")
    queue_position: int | None = Field(description="Place in the queue; 1 is the next.")
    seed: int = Field(description="Seed of the noise, with which the video can be made again.")
    priority: str
    draft_step: int | None = Field(description="Number of steps that the draft comes after.")
    state_step: int | None = Field(description="Number of steps from which the job would go on.")
    attempts: int = Field(description="Number of runs that began with the first step.")
    remixed_from_video_id: str | None
    request: dict[str, Any] = Field(description="All fields of the served model's request.")


class VideoList(BaseModel):
    """A page of a key's jobs."""

    object: Literal["list"] = "list"
    data: list[VideoAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(BaseModel):
    """Answer to the deletion of a job."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: bool = True


def video_answer(job: Job, position: int | None) -> VideoAnswer:
    """Return the answer about a job.

    Args:
        job: Job.
        position: Place of a waiting job in the queue.
    """
    share = 100 if job.status is Status.COMPLETED else 100 * job.step // max(job.steps, 1)
    error = None
    if job.error_code is not None:
        error = VideoError(code=job.error_code, message=job.error_message or "")
    return VideoAnswer(
        id=job.id,
        model=job.model,
        status=job.status.value,
        progress=min(max(share, 0), 100),
        phase=job.phase,
        step=job.step,
        steps=job.steps,
        created_at=math.floor(job.created_at),
        started_at=_whole(job.started_at),
        completed_at=_whole(job.completed_at),
        expires_at=_whole(job.expires_at),
        seconds=f"{job.frames / job.fps:.4g}",
        size=f"{job.width}x{job.height}",
        frames=job.frames,
        fps=job.fps,
        error=error,
        # Benchmarks read the first answer with a number, so 0 would be the time of every video.
        inference_time_s=round(job.inference_time_s, 3) or None,
        stage_durations={name: round(seconds, 3) for name, seconds in job.stage_durations.items()},
        queue_position=position if job.status is Status.QUEUED else None,
        seed=job.seed,
        priority=job.priority,
        draft_step=job.draft_step,
        state_step=job.state_step,
        attempts=job.attempts,
        remixed_from_video_id=job.remixed_from,
        request=job.request,
    )


def _whole(time_s: float | None) -> int | None:
    return None if time_s is None else math.floor(time_s)
