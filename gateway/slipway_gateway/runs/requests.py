"""Request of a run: that of its job, from the first step or from the job's last state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipway_client import continued_request
from slipway_client.states import split_state
from slipway_gateway.fields.creation import rebuilt_values
from slipway_gateway.fields.kinds import VideoKind
from slipway_gateway.jobs.job import Job
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.fields import fields_of
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.snapshots.denoising_states import FIELD, Origin, read_state

# What a continued request does not take from its state, but from the job.
_DELIVERY = ("stop_after_step", "draft", "priority", "timeout_s", "fps")


def request_of(
    kind: VideoKind,
    job: Job,
    pictures: Mapping[str, bytes | None],
    state: bytes | None,
    checkpoint_every_steps: int,
) -> Request:
    """Return the request that a run sends.

    Args:
        kind: Kind of the video.
        job: Job of the run.
        pictures: Bytes of each picture of the job, by the name of the field.
        state: State to continue from, or None.
        checkpoint_every_steps: Number of steps between two states, unless the job states another one.

    Raises:
        InvalidRequest: The state is damaged, or is one of another model.
    """
    values = rebuilt_values(kind, job.request, pictures)
    delivery = _delivery(kind, values, job, checkpoint_every_steps)
    if state is None:
        return kind.request(**{**values, **delivery})
    assert issubclass(kind.request, DenoisingRequest)
    changed = {name: values[name] for name in (*_DELIVERY, *kind.request.conditions) if name in values}
    if split_state(state, kind.model)[1]:
        delivery.pop("output", None)  # The parts that the state has decide the form.
    return continued_request(kind.request, state, **{**changed, **delivery})


def is_refused_state(error: InvalidRequest) -> bool:
    """Return True if a server refused the state of a request, and not a field of its caller."""
    return f"{FIELD} must" in str(error)


def origin_of(state: bytes, model: str) -> Origin:
    """Return the models that made a state."""
    return read_state(split_state(state, model)[0], model).origin


def _delivery(kind: VideoKind, values: Mapping[str, Any], job: Job, every: int) -> dict[str, Any]:
    """Return the fields with which the gateway receives a result, its previews and its states."""
    found: dict[str, Any] = {}
    names = {field.name for field in fields_of(kind.request)}
    if kind.output:
        found["output"] = kind.output
    if "preview" in names:
        found["preview"] = True
    if kind.can_stop and values.get("checkpoint_every_steps") is None:
        # A state before the last step also tells which models make the video.
        found["checkpoint_every_steps"] = max(1, min(every, job.steps - 1))
    return found
