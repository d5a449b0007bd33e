"""State of a denoising loop between two steps as a value, and its conversion to parts and back.

The state is a tree of plain values with arrays as its leaves. The header of each part holds the tree with a
number in place of each array, and the types and shapes of the arrays; the contents of all parts together are
the bytes of the arrays. Nothing is compressed, pickled or read from a path that a state names, so a state
from a stranger costs no more than its own size. A state file contains the parts one after the other.
"""

from __future__ import annotations

import io
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.snapshots.parts import Header, make, parse, read_parts
from slipway_serving.protocol.texts import short

STATE_PART_BYTES = 2 << 20
"""Size of the content of a part, in bytes. A part as base64 text is below gRPC's default limit of 4 MiB."""
FIELD = "continue_from"
"""Name of the request's field that brings a state, for messages."""

_FORMAT = 1
_DTYPES = frozenset({"float32", "float64", "int64", "int32", "uint8", "bool"})
_MOST_AXES, _MOST_ARRAYS, _MOST_PARTS = 8, 4096, 1 << 16
# Latents and embeddings are far smaller; larger values would overflow in a network.
_LARGEST = 1e6
_ARRAY, _MAP = "array", "map"


@dataclass(frozen=True)
class Origin:
    """Models that made a state.

    Attributes:
        checkpoint: Digest of the checkpoint's weights, the same for every engine.
        files: Digest of the files of the models.
        engines: Engine and precision of each model, by its name.
    """

    checkpoint: str
    files: str
    engines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DenoisingState:
    """State of a video at the boundary between two steps.

    Attributes:
        model: Name of the served pipeline.
        origin: Models that made the state.
        request: Values of the request's fields, by name; pictures and files as uint8 arrays.
        reason: Reason of the stop, one of :data:`slipway_serving.protocol.diffusion.stopping.STOP_REASONS`;
            "" for a state that was sent while the request went on.
        step: Number of finished steps, of all loops.
        steps: Number of all steps.
        kept: Values that the loop keeps between two steps: a tree of mappings, lists, plain values, arrays.
    """

    model: str
    origin: Origin
    request: Mapping[str, Any]
    reason: str
    step: int
    steps: int
    kept: Mapping[str, Any]

    def parts(self, part_bytes: int = STATE_PART_BYTES) -> Iterator[bytes]:
        """Yield the parts of the state.

        Args:
            part_bytes: Size of the content of a part, in bytes; the last part may be smaller.
        """
        arrays: dict[Any, tuple[int, NDArray[Any]]] = {}
        trees = {"request": _plain(self.request, arrays), "kept": _plain(self.kept, arrays)}
        told = {
            "state": _FORMAT,
            "origin": asdict(self.origin),
            "reason": self.reason,
            "step": self.step,
            "steps": self.steps,
            **trees,
        }
        header = Header(self.model, self.origin.files, secrets.token_hex(16), 0, 0, 0, told)
        yield from array_parts(header, [array for _, array in arrays.values()], part_bytes)

    def to_bytes(self) -> bytes:
        """Return the contents of a state file."""
        return b"".join(self.parts())


def array_parts(
    header: Header, arrays: Sequence[NDArray[Any]], part_bytes: int = STATE_PART_BYTES
) -> Iterator[bytes]:
    """Yield the parts of a snapshot whose contents are the bytes of arrays.

    Args:
        header: Header that all parts have in common; its numbers and sizes are set here, and the types and
            shapes of the arrays are added to what it tells.
        arrays: Arrays in their order.
        part_bytes: Size of the content of a part, in bytes; the last part may be smaller.
    """
    leaves = [np.asarray(array, order="C") for array in arrays]
    told = {**header.told, "arrays": [[array.dtype.name, list(array.shape)] for array in leaves]}
    count = max(1, -(-sum(array.nbytes for array in leaves) // part_bytes))
    for number, content in enumerate(_pieces(leaves, part_bytes, count)):
        yield make(replace(header, part=number, parts=count, size=len(content), told=told), content)


def read_state(data: bytes, where: str) -> DenoisingState:
    """Read a state from the contents of a state file.

    Args:
        data: Parts of the state, joined in their order.
        where: Name of the model or file, for messages.

    Raises:
        InvalidRequest: The bytes are incomplete, changed, out of order or no state of this format; the
            message names what is wrong.
    """
    first: Header | None = None
    contents: list[bytes] = []
    for number, part in enumerate(read_parts(io.BytesIO(data), where, FIELD)):
        header, content = parse(part, where, FIELD)
        first = first or header
        if (header.snapshot, header.parts, header.told) != (first.snapshot, first.parts, first.told):
            _refuse(where, "consist of parts of one state", f"part {number} of another one")
        if header.part != number:
            _refuse(where, f"have part {number} of {first.parts} next", f"part {short(header.part)}")
        contents.append(bytes(content))
    if first is None or len(contents) != first.parts or len(contents) > _MOST_PARTS:
        expected = short(first.parts) if first is not None else "1 or more"
        _refuse(where, f"have all of its {expected} parts", f"{len(contents)}")
    try:
        return _state(first, b"".join(contents), where)
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError, IndexError) as error:
        _refuse(where, "be the state of a stopped video", short(f"{type(error).__name__}: {error}"))


def _state(header: Header, content: bytes, where: str) -> DenoisingState:
    told = header.told
    if told.get("state") != _FORMAT:
        _refuse(
            where,
            f"be of state format {_FORMAT}",
            f"{short(told.get('state'))}; try a server of the version that made it",
        )
    origin = Origin(**told["origin"])
    arrays = read_arrays(told["arrays"], content, where)
    step, steps = told["step"], told["steps"]
    texts = (header.model, origin.checkpoint, origin.files, told["reason"], *origin.engines.values())
    if not (type(step) is int and type(steps) is int and 0 <= step <= steps) or not all(
        isinstance(text, str) for text in texts
    ):
        _refuse(where, "have a step within its steps", f"{short(step)} of {short(steps)}")
    request, kept = (_tree(told[name], arrays) for name in ("request", "kept"))
    if not isinstance(request, dict) or not isinstance(kept, dict):
        raise TypeError("request and kept must be mappings")
    return DenoisingState(header.model, origin, request, told["reason"], step, steps, kept)


def _plain(value: Any, arrays: dict[Any, tuple[int, NDArray[Any]]]) -> Any:
    """Return a tree in types of JSON, with numbers in place of its arrays, which are collected."""
    if isinstance(value, np.ndarray):
        # The same memory occurs several times where a cache keeps the inputs of the last step.
        key = (value.__array_interface__["data"][0], value.shape, value.strides, value.dtype.str)
        return {_ARRAY: arrays.setdefault(key, (len(arrays), value))[0]}
    if isinstance(value, Mapping):
        return {_MAP: {name: _plain(each, arrays) for name, each in value.items()}}
    if isinstance(value, list | tuple):
        return [_plain(each, arrays) for each in value]
    return value


def _tree(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """Return the tree that :func:`_plain` converted."""
    if isinstance(value, dict):
        if _ARRAY in value:
            number = value[_ARRAY]
            if type(number) is not int or number < 0:
                raise ValueError("an array must be given by its number")
            return arrays[number]
        return {name: _tree(each, arrays) for name, each in value[_MAP].items()}
    if isinstance(value, list):
        return [_tree(each, arrays) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("numbers must be finite")
    return value


def read_arrays(described: Any, content: bytes, where: str) -> list[NDArray[Any]]:
    """Return the arrays of a snapshot of :func:`array_parts`, as views of its contents.

    Args:
        described: Types and shapes of the arrays, as a header tells them.
        content: Contents of all parts, joined in their order.
        where: Name of the model or file, for messages.

    Raises:
        InvalidRequest: The description is invalid or does not fit the contents, or a number is too large.
    """
    if not isinstance(described, list) or len(described) > _MOST_ARRAYS:
        _refuse(where, f"have at most {_MOST_ARRAYS} arrays", "more")
    found, at = [], 0
    for number, (dtype, shape) in enumerate(described):
        sizes_fit = isinstance(shape, list) and len(shape) <= _MOST_AXES
        if (
            dtype not in _DTYPES
            or not sizes_fit
            or not all(type(size) is int and size >= 0 for size in shape)
        ):
            _refuse(where, f"have arrays of {', '.join(sorted(_DTYPES))}", short([dtype, shape]))
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if at + size > len(content):
            _refuse(
                where, "have the bytes of all of its arrays", f"{len(content)} bytes for {at + size} or more"
            )
        array = np.frombuffer(content, dtype, math.prod(shape), at).reshape(shape)
        # The comparison is False for NaN.
        if array.dtype.kind == "f" and not (np.abs(array) <= _LARGEST).all():
            _refuse(where, f"contain finite numbers of at most {_LARGEST:g}", f"others in array {number}")
        found.append(array)
        at += size
    if at != len(content):
        _refuse(where, "have the bytes of its arrays and no others", f"{len(content)} bytes for {at}")
    return found


def _pieces(arrays: list[NDArray[Any]], part_bytes: int, count: int) -> Iterator[bytes]:
    """Yield the bytes of arrays in pieces of equal size."""
    views = [memoryview(array.reshape(-1).view(np.uint8).data) for array in arrays]
    waiting: list[memoryview] = []
    size, sent = 0, 0
    for view in views:
        while len(view):
            taken = view[: part_bytes - size]
            waiting.append(taken)
            size += len(taken)
            view = view[len(taken) :]  # noqa: PLW2901
            if size == part_bytes:
                yield b"".join(waiting)
                waiting, size, sent = [], 0, sent + 1
    if sent < count:
        yield b"".join(waiting)


def _refuse(where: str, rule: str, got: str) -> NoReturn:
    raise InvalidRequest(f"{where}: {FIELD} must {rule}, got {got}")
