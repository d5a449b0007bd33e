"""Limits of a key: the priority it may ask for, and how much work it may have.

A key's limits are checked in two places. :func:`check_job` compares one job with them and needs no database;
:meth:`slipway_gateway.jobs.store.JobStore.create` counts the key's jobs in the transaction that adds one.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipway_gateway.jobs.job import NewJob
from slipway_serving.protocol.diffusion.stopping import PRIORITIES
from slipway_serving.protocol.errors import InvalidRequest, raise_all

_WHERE = "key"


@dataclass(frozen=True)
class KeyLimits:
    """Limits of a key.

    Attributes:
        priority: Highest priority that the key may ask for.
        waiting: Number of jobs that may wait at the same time; None does not limit them.
        jobs_per_day: Number of jobs that may be created on one day (UTC); None does not limit them.
        pixels: Largest width * height * frames * steps of one job; None does not limit it.

    Raises:
        InvalidRequest: The priority does not exist, or a number is below 1.
    """

    priority: str = "normal"
    waiting: int | None = None
    jobs_per_day: int | None = None
    pixels: int | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.priority not in PRIORITIES:
            problems.append(f"priority must be one of {', '.join(PRIORITIES)}, got {self.priority!r}")
        for name in ("waiting", "jobs_per_day", "pixels"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 2**62:
                problems.append(f"{name} must be at least 1, got {value!r}; try leaving it out for no limit")
        raise_all(_WHERE, problems)


UNLIMITED = KeyLimits(priority=PRIORITIES[0])
"""Limits of a key that may do everything."""


def rank(priority: str) -> int:
    """Return the place of a priority in the order of start; 0 starts first.

    Raises:
        InvalidRequest: The priority does not exist.
    """
    if priority not in PRIORITIES:
        raise InvalidRequest(
            f"video: priority must be one of {', '.join(PRIORITIES)}, got {priority!r}; try normal"
        )
    return PRIORITIES.index(priority)


def check_priority(priority: str, limits: KeyLimits) -> None:
    """Check that a key may ask for a priority.

    Raises:
        InvalidRequest: The priority does not exist or is above the key's highest one.
    """
    if rank(priority) < rank(limits.priority):
        allowed = PRIORITIES[rank(limits.priority) :]
        rule = f"one of {', '.join(allowed)}" if len(allowed) > 1 else allowed[0]
        raise InvalidRequest(
            f"video: priority must be {rule} with this key, got {priority!r}; try {limits.priority}"
        )


def check_job(new: NewJob, limits: KeyLimits) -> None:
    """Check one new job against the limits of its key that need no count of other jobs.

    Raises:
        InvalidRequest: The priority or the size of the video is above the limit; the message names it.
    """
    check_priority(new.priority, limits)
    pixels = new.width * new.height * new.frames * new.steps
    if limits.pixels is not None and pixels > limits.pixels:
        raise InvalidRequest(
            f"video: size must be at most {limits.pixels} pixels (width * height * frames * steps) with this"
            f" key, got {new.width} * {new.height} * {new.frames} * {new.steps} = {pixels}; try a smaller"
            " video or fewer steps"
        )
