"""Fields of a paused job after its caller changed some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipway_gateway.fields.kinds import VideoKind
from slipway_gateway.fields.parsing import convert
from slipway_gateway.jobs.job import Job
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.errors import raise_all
from slipway_serving.protocol.texts import short

_ENDED = ("stop_after_step", "draft")
"""Fields that belong to the run before the pause."""


def changeable_fields(kind: VideoKind) -> list[str]:
    """Return the names of the fields that may change when a job is resumed."""
    if not issubclass(kind.request, DenoisingRequest):
        return []
    return sorted((kind.request.changeable | kind.request.conditions) & kind.fields.keys())


def resumed_values(kind: VideoKind, job: Job, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job that is resumed.

    Args:
        kind: Kind of the video.
        job: Paused job.
        changes: Fields that the caller changes.

    Raises:
        InvalidRequest: A field must not change or breaks its rule; the message names all of them.
    """
    allowed = changeable_fields(kind)
    values = {name: value for name, value in job.request.items() if name not in _ENDED}
    problems = []
    for name, given in changes.items():
        if name not in allowed:
            problems.append(
                f"{short(name).strip(chr(39))} must be one of the fields that may change"
                f" ({', '.join(allowed) or 'none'}), got another field; try a new video"
            )
            continue
        value, problem = convert(kind.fields[name], given)
        problem = problem or ("" if value is None else kind.fields[name].problem(value))
        problems += [problem] if problem else []
        values[name] = value
    stop = values.get("stop_after_step")
    if isinstance(stop, int) and stop <= job.step:
        problems.append(f"stop_after_step must be above the {job.step} finished steps, got {stop}")
    raise_all(kind.model, problems)
    return values
