"""Parts of a result that a server delivered before a state, in the format of the parts of a state.

FramePack delivers the frames of a section when the section is finished, and the server's state does not
contain them. A client adds them to the state, so that another client can join the whole result. Each
delivered part is a snapshot of its own: its arrays are the tensors of the event, with bytes as uint8 arrays,
and its header has its number and the digest of the state that it follows. The parts contain no base64 text,
so the video can be continued over either protocol.
"""

from __future__ import annotations

import hashlib
import io
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import InvalidRequest, Malformed
from slipway_serving.protocol.events import FramesPart, VideoPart, read, tensors
from slipway_serving.protocol.fields import fields_of
from slipway_serving.protocol.snapshots.denoising_states import FIELD, array_parts, read_arrays
from slipway_serving.protocol.snapshots.parts import Header, parse, read_parts
from slipway_serving.protocol.texts import short

DeliveredPart = FramesPart | VideoPart
MARK = "delivered"
"""Name of the value in a header that tells a delivered part from a part of the server's state."""

_FORMAT = 1
_EVENTS = (FramesPart, VideoPart)
_BYTES = frozenset(field.name for event in _EVENTS for field in fields_of(event) if field.datatype == "BYTES")


def encode_parts(parts: Sequence[DeliveredPart], state: bytes, model: str) -> Iterator[bytes]:
    """Yield delivered parts as bytes, to be appended to a state.

    Args:
        parts: Parts in the order of their arrival, without base64 text.
        state: State of the server that the parts came before.
        model: Name of the model.
    """
    digest = hashlib.sha256(state).hexdigest()
    for number, part in enumerate(parts):
        arrays = {name: _array(tensor) for name, tensor in tensors(part).items()}
        told = {MARK: _FORMAT, "state": digest, "number": number, "count": len(parts), "names": [*arrays]}
        header = Header(model, "", secrets.token_hex(16), 0, 0, 0, told)
        yield from array_parts(header, list(arrays.values()))


def decode_parts(data: bytes, state: bytes, where: str) -> tuple[DeliveredPart, ...]:
    """Read the delivered parts that follow a state.

    Args:
        data: Bytes after the server's own parts.
        state: The server's own parts.
        where: Name of the model or file, for messages.

    Returns:
        Parts in the order of their arrival, without base64 text.

    Raises:
        InvalidRequest: The bytes are incomplete, changed, out of order or no delivered parts of this state;
            the message names what is wrong.
    """
    if not data:
        return ()
    digest, count = hashlib.sha256(state).hexdigest(), 1
    found: list[DeliveredPart] = []
    try:
        for header, content in _snapshots(data, where):
            told = header.told
            if told.get(MARK) != _FORMAT:
                _refuse(where, f"have delivered parts of format {_FORMAT}", short(told.get(MARK)))
            if told["state"] != digest:
                _refuse(where, "have the parts that were delivered before it", "those of another state")
            count = told["count"] if not found else count
            if (told["number"], told["count"]) != (len(found), count):
                got = f"{short(told['number'])} of {short(told['count'])}"
                _refuse(where, f"have delivered part {len(found)} of {short(count)} next", got)
            found.append(_part(told["names"], read_arrays(told["arrays"], content, where), where))
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError, IndexError) as error:
        _refuse(where, "have delivered parts of a video", short(f"{type(error).__name__}: {error}"))
    if len(found) != count:
        _refuse(where, f"have all of its {short(count)} delivered parts", f"{len(found)}")
    if len({type(part) for part in found}) != 1:
        _refuse(where, "have delivered parts of one form", "frames and video")
    return tuple(found)


def form_of(parts: Sequence[DeliveredPart]) -> str:
    """Return the form of the result that delivered parts belong to, "frames" or "video"; "" without parts."""
    return "" if not parts else "frames" if isinstance(parts[0], FramesPart) else "video"


def _snapshots(data: bytes, where: str) -> Iterator[tuple[Header, bytes]]:
    """Yield the header and the whole content of each snapshot."""
    first: Header | None = None
    contents: list[memoryview] = []
    for raw in read_parts(io.BytesIO(data), where, FIELD):
        header, content = parse(raw, where, FIELD)
        first = first or header
        if header != replace(first, part=len(contents), size=header.size):
            expected = f"part {len(contents)} of {short(first.parts)} of a delivered part next"
            _refuse(where, f"have {expected}", f"part {short(header.part)} of {short(header.parts)}")
        contents.append(content)
        if len(contents) == first.parts:
            yield first, b"".join(contents)
            first, contents = None, []
    if first is not None:
        _refuse(where, f"have all {short(first.parts)} parts of a delivered part", f"{len(contents)}")


def _part(names: Any, arrays: list[NDArray[Any]], where: str) -> DeliveredPart:
    """Return the event of a delivered part; its types and shapes are checked like those of a response."""
    named = {name: _tensor(name, array) for name, array in zip(names, arrays, strict=True)}
    try:
        part = read(_EVENTS, named, where)
    except Malformed as error:
        _refuse(where, "have valid delivered parts", str(error).removeprefix(f"{where}: ")[:200])
    if not isinstance(part, _EVENTS) or part.draft_step is not None:
        _refuse(where, "have delivered parts of a result", "parts of a draft")
    if isinstance(part, FramesPart) and part.frames is None:
        _refuse(where, "have delivered frames as pixels", "base64 text")
    return part


def _array(tensor: NDArray[Any]) -> NDArray[Any]:
    """Return a tensor whose element may be bytes as an array of numbers."""
    if tensor.dtype != np.object_:
        return tensor
    return np.frombuffer(bytes(tensor.reshape(-1)[0]), np.uint8)


def _tensor(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return the tensor that :func:`_array` converted."""
    if name not in _BYTES:
        return array
    if array.dtype != np.uint8:
        raise TypeError(f"{name} must be uint8")
    return np.array([array.tobytes()], np.object_)


def _refuse(where: str, rule: str, got: str) -> NoReturn:
    raise InvalidRequest(f"{where}: {FIELD} must {rule}, got {got}")
