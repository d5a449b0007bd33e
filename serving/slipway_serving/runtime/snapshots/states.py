"""Conversion between a session's state and the parts of its snapshot.

A part does not describe the names, order and sizes of the arrays of a state. Both servers know them from the
files of the model, and a server refuses a snapshot if its files differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import raise_all
from slipway_serving.protocol.snapshots.parts import PART_BYTES, Header, make, parse
from slipway_serving.protocol.snapshots.requests import Snapshot
from slipway_serving.protocol.texts import short

S = TypeVar("S")

# This table gives the advice of the error for each field of a part's header.
_FIXES = {
    "model": "a session of that model",
    "files": "a server of the same export",
    "part": "all parts in their order",
    "parts": "a server of the same export",
    "snapshot": "the parts of one snapshot",
    "told": "the parts of one snapshot",
}
# Errors show these names instead of the field's own name.
_LABELS = {"told": "the values"}


@dataclass(frozen=True)
class ArraySpec:
    """Shape and element type of an array of a state.

    Attributes:
        shape: Sizes of the array's dimensions.
        dtype: NumPy's name of the element type.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def bytes(self) -> int:
        """Size of the array, in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class SnapshotFormat(Generic[S]):
    """Format of a model's snapshots: it writes states as parts and says how to read them back.

    Args:
        model: Name of the model.
        files: Digest of the model's files.
        specs: Specs of the arrays of every state, by name, in the order of the content.
        unpack: Function that makes a state from the values that are not arrays and from the arrays, which it
            may remove from the mapping one by one. It raises InvalidRequest if they are not a state.
        part_bytes: Size of the content of a part, in bytes; the last part may be smaller.
    """

    def __init__(
        self,
        model: str,
        files: str,
        specs: Mapping[str, ArraySpec],
        unpack: Callable[[Mapping[str, Any], dict[str, NDArray[Any]]], S],
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.model, self.files, self.specs, self.unpack = model, files, specs, unpack
        self._part_bytes = part_bytes
        self.parts = max(1, -(-sum(spec.bytes for spec in specs.values()) // part_bytes))

    def check(self, request: Snapshot) -> None:
        """Check that the requested part exists.

        Raises:
            InvalidRequest: There is no such part.
        """
        if request.snapshot_part >= self.parts:
            rule = f"snapshot_part must be 0 to {self.parts - 1}, got {request.snapshot_part}"
            raise_all(self.model, [rule])

    def part(
        self, number: int, snapshot: str, values: Mapping[str, Any], read: Callable[[str], NDArray[Any]]
    ) -> bytes:
        """Return a part of a state.

        Args:
            number: Number of the part, from 0.
            snapshot: Name that no other state has.
            values: Values of the state that are not arrays, in types of JSON.
            read: Function that returns an array by name, called for the arrays with a piece in this part.
        """
        content = b"".join(
            np.ascontiguousarray(read(name)).reshape(-1).view(np.uint8)[piece].tobytes()
            for name, piece in self.pieces(number)
        )
        header = Header(self.model, self.files, snapshot, number, self.parts, len(content), values)
        return make(header, content)

    def pieces(self, number: int) -> Iterator[tuple[str, slice]]:
        """Yield the name and the range of bytes of each array that a part contains a piece of."""
        low, high = number * self._part_bytes, (number + 1) * self._part_bytes
        at = 0
        for name, spec in self.specs.items():
            first, last = max(low, at), min(high, at + spec.bytes)
            if first < last:
                yield name, slice(first - at, last - at)
            at += spec.bytes


class PartialState(Generic[S]):
    """State that is being restored part by part.

    Args:
        snapshot_format: Format of the model's snapshots.

    Attributes:
        received: Number of parts received so far.
    """

    def __init__(self, snapshot_format: SnapshotFormat[S]) -> None:
        self._format = snapshot_format
        self._arrays: dict[str, NDArray[Any]] = {}
        self._first: Header | None = None
        self.received = 0

    def check(self, part: bytes) -> None:
        """Check that a part is the next one of this state.

        Raises:
            InvalidRequest: The part is incomplete or changed, belongs to another model or snapshot, or is not
                the next one.
        """
        form = self._format
        header, content = parse(part, form.model)
        expected = {"model": form.model, "files": form.files, "part": self.received, "parts": form.parts}
        if self._first is not None:
            expected |= {"snapshot": self._first.snapshot, "told": self._first.told}
        problems = [
            f"restore must have {_LABELS.get(name, name)} {short(wanted)}, got {short(got)};"
            f" try {_FIXES[name]}"
            for name, wanted in expected.items()
            if (got := getattr(header, name)) != wanted
        ]
        size = sum(piece.stop - piece.start for _, piece in form.pieces(self.received))
        if not problems and len(content) != size:
            problems = [f"restore must have {size} bytes in part {self.received}, got {len(content)}"]
        raise_all(form.model, problems[:1])

    def add(self, part: bytes) -> S | None:
        """Take a part after :meth:`check` has accepted it.

        Returns:
            The state if this was the last part, else None.

        Raises:
            InvalidRequest: The parts are complete but are not a state of the model.
        """
        header, content = parse(part, self._format.model)
        self._first = self._first or header
        at = 0
        for name, piece in self._format.pieces(self.received):
            if name not in self._arrays:
                spec = self._format.specs[name]
                self._arrays[name] = np.empty(spec.shape, spec.dtype)
            size = piece.stop - piece.start
            self._arrays[name].reshape(-1).view(np.uint8)[piece] = np.frombuffer(
                content[at : at + size], np.uint8
            )
            at += size
        self.received += 1
        if self.received < self._format.parts:
            return None
        return self._format.unpack(header.told, self._arrays)
