"""States of stopped videos: the requests that continue them, their files, and their parts in a stream.

A server sends a state in parts (:class:`StateParts` joins them). :func:`join_state` adds the parts of the
result that the server delivered before, and :func:`split_state` separates them again, since a server takes
its own parts only. A state is kept in a file by :func:`write_state`, and :func:`continued_request` makes the
request that brings it back to a server.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from slipway_client.delivered_parts import MARK, DeliveredPart, decode_parts, encode_parts, form_of
from slipway_client.results import Checkpoint, malformed
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest, StatePart
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.protocol.fields import fields_of
from slipway_serving.protocol.snapshots.denoising_states import FIELD, read_state
from slipway_serving.protocol.snapshots.parts import parse, read_parts

R = TypeVar("R", bound=DenoisingRequest)

_NOT_KEPT = frozenset(
    {"stop_after_step", "draft", "priority", "checkpoint_every_steps", "timeout_s", "preview", "output"}
)
"""Fields of a stopped request that its continuation does not take over; servers leave out the same ones."""


def continued_request(kind: type[R], state: bytes, **changes: Any) -> R:
    """Return the request that continues a stopped video.

    Its fields are those of the stopped request, except for how it is stopped and delivered: those
    (`stop_after_step`, `draft`, `priority`, `checkpoint_every_steps`, `timeout_s`, `preview`, `output`) take
    their defaults unless they are given. If the state has parts of the result, `output` is their form.

    Args:
        kind: Class of the request.
        state: Whole state, from :class:`Checkpoint`, from `Stopped.state` or from a file.
        **changes: Values of fields that differ from the stopped request; only those in `kind.changeable` and
            `kind.conditions` may differ.

    Raises:
        InvalidRequest: The state is damaged or of another model, or a field must not change or breaks its
            rule; the message names it.
    """
    own, delivered = split_state(state, kind.model)
    stopped = read_state(own, kind.model)
    if stopped.model != kind.model:
        raise InvalidRequest(
            f"{kind.model}: {FIELD} must be the state of a video of {kind.model}, got one of"
            f" {stopped.model!r}; try the request class of that model"
        )
    may_change = (kind.changeable | kind.conditions) - {FIELD}
    raise_all(
        kind.model,
        [
            f"{name} must be one of the fields that may change ({', '.join(sorted(may_change))}), got"
            f" {name}; try leaving it out, or a new video"
            for name in sorted(set(changes) - may_change)
        ],
    )
    values: dict[str, Any] = {}
    for field in fields_of(kind):
        value = stopped.request.get(field.name)
        if field.name == "output" and delivered:
            values[field.name] = form_of(delivered)
        if field.name in _NOT_KEPT or value is None:
            continue
        is_file = isinstance(value, np.ndarray) and field.datatype == "BYTES"
        values[field.name] = value.tobytes() if is_file else value
    try:
        return kind(**{**values, **changes, FIELD: state})
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(
            f"{kind.model}: {FIELD} must contain the fields of a {kind.__name__}, got others ({error})"
        ) from None


def write_state(path: Path, state: bytes) -> None:
    """Write a state to a file, whole or not at all; only its owner may read it.

    Args:
        path: File to write; an existing one is replaced.
        state: Whole state.

    Raises:
        InvalidRequest: The file cannot be written; an existing one is unchanged.
    """
    try:
        # The file is created with mode 0600, since a state contains the prompt and the picture.
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(state)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise InvalidRequest(
            f"{path}: a state must be written to a writable file, got {error}; try another folder"
        ) from None


def read_state_file(path: Path) -> bytes:
    """Read a state from a file and check that it is whole.

    Args:
        path: File that :func:`write_state` has written.

    Raises:
        InvalidRequest: The file cannot be read, or is not a whole and unchanged state; the message says why.
    """
    try:
        state = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path}: a state must be a readable file, got {error}") from None
    read_state(split_state(state, str(path))[0], str(path))
    return state


def join_state(state: bytes, delivered: Sequence[DeliveredPart], model: str) -> bytes:
    """Return a state with the parts of the result that were delivered before it.

    Args:
        state: State of the server.
        delivered: Parts in the order of their arrival, without base64 text.
        model: Name of the called model.
    """
    return b"".join([state, *encode_parts(delivered, state, model)]) if delivered else state


def split_state(state: bytes, where: str) -> tuple[bytes, tuple[DeliveredPart, ...]]:
    """Return the server's own parts of a state, and the parts of the result that were delivered before it.

    Damage to the server's own parts is not refused here but by their reader.

    Args:
        state: Whole state, as :func:`join_state` returned it.
        where: Name of the model or file, for messages.

    Raises:
        InvalidRequest: The delivered parts are damaged or belong to another state; the message says why.
    """
    end = _size_of_own(state, where)
    own = state[:end]
    return own, decode_parts(state[end:], own, where)


def _size_of_own(state: bytes, where: str) -> int:
    """Return the number of bytes of the server's own parts; of the whole state if they are damaged."""
    size, number, count = 0, 0, 1
    try:
        for part in read_parts(io.BytesIO(state), where, FIELD):
            if number == 0:
                count = parse(part, where, FIELD)[0].parts
            elif number == count:
                return size if MARK in parse(part, where, FIELD)[0].told else len(state)
            size, number = size + len(part), number + 1
    except InvalidRequest:
        # A damaged part behind the server's own ones can only be a delivered one.
        return size if 0 < number == count else len(state)
    return len(state)


class StateParts:
    """Joins the parts of states in a stream.

    Args:
        model: Name of the called model, for messages.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._parts: list[StatePart] = []

    def add(self, part: StatePart) -> Checkpoint | None:
        """Add a part, and return the whole state if it was the last one.

        Raises:
            Malformed: The part is not the next one of its state.
        """
        first = self._parts[0] if self._parts else part
        expected = len(self._parts), first.state_parts, first.state_step
        got = part.state_part, part.state_parts, part.state_step
        if got != expected or part.state_part >= part.state_parts:
            raise malformed(
                self._model,
                f"a state must have part {expected[0]} of {expected[1]} after step {expected[2]} next, got"
                f" part {got[0]} of {got[1]} after step {got[2]}",
            )
        self._parts.append(part)
        if len(self._parts) < part.state_parts:
            return None
        state = b"".join(each.state for each in self._parts)
        self._parts = []
        return Checkpoint(state, part.state_step)

    def clear(self) -> None:
        """Forget the parts of a state that is not complete."""
        self._parts = []
