"""Data of a job: what a caller asked for, how far the work is, and which worker does it.

A creator fills in :class:`NewJob`. :class:`slipway_gateway.jobs.store.JobStore` stores it and returns
:class:`Job`, a copy of the row at one moment. Callers set a :class:`Wish`, which the worker reads at its next
step, and the worker moves the job from one :class:`Status` to the next.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from slipway_gateway.errors import ApiError, not_found
from slipway_serving.protocol.errors import NotReady

PREPARING = "preparing"
"""Phase of a job that a worker has just claimed."""
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID = re.compile(rf"video_[{_ALPHABET}]{{26}}")
_RANDOM_BITS = 80


class Status(StrEnum):
    """State of a job, as clients of the video API know it."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether a job with this status never changes its status again."""
        return self in {Status.COMPLETED, Status.FAILED, Status.CANCELLED}


class Wish(StrEnum):
    """What a caller wants a running job to do at its next step."""

    NONE = "none"
    PAUSE = "pause"
    CANCEL = "cancel"
    DELETE = "delete"


class LeaseLost(NotReady):
    """The job is no longer this worker's: its lease has lapsed, or it was removed.

    The worker stops the run and stores nothing of it.
    """


@dataclass(frozen=True)
class Job:
    """One job at one moment.

    Attributes:
        id: "video_" and 26 characters; ids sort by the time of creation.
        owner: Identifier of the key that created the job.
        model: Name of the served model.
        status: State of the job.
        phase: Stage of the work, such as "denoising"; None before a worker has the job.
        step: Number of steps that are done.
        steps: Number of steps in total.
        request: Fields of the family's request class as JSON values; the seed is always among them, and a
            picture is ``{"content": name}``, its name among the contents.
        parameters: Fields that the caller sent, as JSON values, without pictures.
        seed: Seed of the noise.
        width: Width of the video, in pixels.
        height: Height of the video, in pixels.
        frames: Number of frames.
        fps: Frames per second.
        priority: One of "urgent", "normal" and "low".
        created_at: Time of creation, in Unix seconds.
        started_at: Time of the first claim, in Unix seconds.
        completed_at: Time at which the job reached its final status, in Unix seconds.
        expires_at: Time after which the job and its contents are deleted, in Unix seconds.
        error_code: Name of the error of a failed job, for programs.
        error_message: Sentence about the error of a failed job.
        inference_time_s: Time that workers spent on the job, all runs together.
        stage_durations: Seconds per stage, all runs together.
        attempts: Number of runs that began without a state.
        runs_from_state: Number of runs that began since the last state was saved.
        state_step: Number of steps that the saved state comes after; None if there is no state.
        draft_step: Number of steps that the saved draft comes after; None if there is no draft.
        wish: Wish of the caller for the running job.
        worker: Name of the current or last run of the job. It is unique for every claim.
        lease_until: Time until which the worker has the job, in Unix seconds.
        version: Number of the last change; a later change of any job has a higher number.
        webhook_url: Address that is told about the end of the job.
        remixed_from: Identifier of the job whose settings this one took over.
        traceparent: Trace context of the creating request (W3C).
    """

    id: str
    owner: str
    model: str
    status: Status
    phase: str | None
    step: int
    steps: int
    request: dict[str, Any]
    parameters: dict[str, Any]
    seed: int
    width: int
    height: int
    frames: int
    fps: float
    priority: str
    created_at: float
    started_at: float | None
    completed_at: float | None
    expires_at: float | None
    error_code: str | None
    error_message: str | None
    inference_time_s: float
    stage_durations: dict[str, float]
    attempts: int
    runs_from_state: int
    state_step: int | None
    draft_step: int | None
    wish: Wish
    worker: str | None
    lease_until: float | None
    version: int
    webhook_url: str | None
    remixed_from: str | None
    traceparent: str | None


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """Job that a caller creates.

    Attributes:
        id: Identifier from :func:`new_job_id`.
        owner: Identifier of the key.
        model: Name of the served model.
        request: Fields of the request class, as in :class:`Job`.
        parameters: Fields that the caller sent, as in :class:`Job`.
        seed: Seed of the noise.
        width: Width of the video, in pixels.
        height: Height of the video, in pixels.
        frames: Number of frames.
        fps: Frames per second.
        steps: Number of steps in total.
        fingerprint: Digest of everything that the caller sent; a repeated request has the same one.
        priority: One of "urgent", "normal" and "low".
        idempotency_key: Value of the header Idempotency-Key.
        webhook_url: Address that is told about the end of the job.
        remixed_from: Identifier of the job whose settings this one takes over.
        traceparent: Trace context of the creating request (W3C).
        input_bytes: Size of the uploaded pictures, in bytes.
    """

    id: str
    owner: str
    model: str
    request: dict[str, Any]
    parameters: dict[str, Any]
    seed: int
    width: int
    height: int
    frames: int
    fps: float
    steps: int
    fingerprint: str
    priority: str = "normal"
    idempotency_key: str | None = None
    webhook_url: str | None = None
    remixed_from: str | None = None
    traceparent: str | None = None
    input_bytes: int = 0


@dataclass(frozen=True)
class Count:
    """Number of jobs of one model with one status.

    Attributes:
        model: Name of the served model.
        status: State that the jobs have in common.
        number: Number of jobs.
        oldest: Time of creation of the oldest one, in Unix seconds.
    """

    model: str
    status: Status
    number: int
    oldest: float


@dataclass(frozen=True)
class Failure:
    """Failed job, as an operator sees it.

    Attributes:
        id: Identifier of the job.
        model: Name of the served model.
        at: Time of the failure, in Unix seconds.
        code: Name of the error, for programs.
        message: Sentence about the error.
    """

    id: str
    model: str
    at: float
    code: str
    message: str


@dataclass(frozen=True)
class Place:
    """Place in the queue that a caller wants for a job.

    Attributes:
        before: Identifier of the waiting job of the same key that comes next; None for the end of the queue.
    """

    before: str | None


@dataclass(frozen=True)
class Changes:
    """Jobs that changed after a mark.

    Attributes:
        mark: Mark for the next read.
        jobs: Changed jobs as they are now; a later read may return the same version of a job again.
        removed: Identifiers of removed jobs.
    """

    mark: int
    jobs: list[Job] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def new_job_id(now: float) -> str:
    """Return a new identifier that sorts by time and cannot be guessed.

    Args:
        now: Time of creation, in Unix seconds.
    """
    number = (int(now * 1000) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
    return "video_" + "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def is_job_id(text: str) -> bool:
    """Return whether a text has the form of a job's identifier."""
    return _ID.fullmatch(text) is not None


def unknown_job(job_id: str) -> ApiError:
    """Return the error for a job that does not exist or belongs to another key."""
    return not_found("video", job_id[:80])
