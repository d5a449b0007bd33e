"""States in parts: a model's state put into them, and one that arrives taken out of them.

What the arrays of a state are, their order and their sizes is not told in a part: both ends know it from the
files of the model, which are the same or the snapshot is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.errors import raise_all
from slipway_serving.snapshots.parts import PART_BYTES, Header, make, parse
from slipway_serving.snapshots.requests import Snapshot
from slipway_serving.texts import short

S = TypeVar("S")

_FIXES = {
    "model": "a session of that model",
    "files": "a server of the same export",
    "part": "all parts in their order",
    "parts": "a server of the same export",
    "snapshot": "the parts of one snapshot",
    "told": "the parts of one snapshot",
}


@dataclass(frozen=True)
class Spec:
    """What an array of a state is.

    Attributes:
        shape: sizes.
        dtype: numpy's name of the element type.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def bytes(self) -> int:
        """Of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class Snapshots(Generic[S]):
    """Puts the states of a model into parts, and takes them out.

    Args:
        model: its name.
        files: digest of what makes it that model.
        specs: of the arrays of every state, by name; their order is that of the content.
        unpack: makes a state from what of it is no array, and from its arrays, which it may take out of the
            mapping one by one. Raises InvalidRequest for what is no state.
        part_bytes: content of a part; the last has less.
    """

    def __init__(
        self,
        model: str,
        files: str,
        specs: Mapping[str, Spec],
        unpack: Callable[[Mapping[str, Any], dict[str, NDArray[Any]]], S],
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.model, self.files, self.specs, self.unpack = model, files, specs, unpack
        self._part_bytes = part_bytes
        self.parts = max(1, -(-sum(spec.bytes for spec in specs.values()) // part_bytes))

    def check(self, asked: Snapshot) -> None:
        """Check that there is such a part.

        Raises:
            InvalidRequest: there is none.
        """
        if asked.snapshot_part >= self.parts:
            rule = f"snapshot_part must be 0 to {self.parts - 1}, got {asked.snapshot_part}"
            raise_all(self.model, [rule])

    def part(
        self, number: int, snapshot: str, told: Mapping[str, Any], read: Callable[[str], NDArray[Any]]
    ) -> bytes:
        """Return a part of a state.

        Args:
            number: which, from 0.
            snapshot: a name that this state has alone.
            told: what of the state is no array; as JSON has it.
            read: returns an array by name; called for those that the part has a piece of.
        """
        content = b"".join(
            np.ascontiguousarray(read(name)).reshape(-1).view(np.uint8)[piece].tobytes()
            for name, piece in self.pieces(number)
        )
        header = Header(self.model, self.files, snapshot, number, self.parts, len(content), told)
        return make(header, content)

    def pieces(self, number: int) -> Iterator[tuple[str, slice]]:
        """Yield which bytes of which arrays a part has."""
        low, high = number * self._part_bytes, (number + 1) * self._part_bytes
        at = 0
        for name, spec in self.specs.items():
            first, last = max(low, at), min(high, at + spec.bytes)
            if first < last:
                yield name, slice(first - at, last - at)
            at += spec.bytes


class Arriving(Generic[S]):
    """A state whose parts come one after the other.

    Args:
        snapshots: of the model.

    Attributes:
        taken: parts so far.
    """

    def __init__(self, snapshots: Snapshots[S]) -> None:
        self._snapshots = snapshots
        self._arrays: dict[str, NDArray[Any]] = {}
        self._first: Header | None = None
        self.taken = 0

    def check(self, part: bytes) -> None:
        """Check that a part is the next of this state.

        Raises:
            InvalidRequest: it is cut short or changed, of another model or snapshot, or not the next.
        """
        known = self._snapshots
        header, content = parse(part, known.model)
        expected = {"model": known.model, "files": known.files, "part": self.taken, "parts": known.parts}
        if self._first is not None:
            expected |= {"snapshot": self._first.snapshot, "told": self._first.told}
        problems = [
            f"restore must have {name} {short(wanted)}, got {short(got)}; try {_FIXES[name]}"
            for name, wanted in expected.items()
            if (got := getattr(header, name)) != wanted
        ]
        size = sum(piece.stop - piece.start for _, piece in known.pieces(self.taken))
        if not problems and len(content) != size:
            problems = [f"restore must have {size} bytes in part {self.taken}, got {len(content)}"]
        raise_all(known.model, problems[:1])

    def take(self, part: bytes) -> S | None:
        """Take a part that was checked.

        Returns:
            The state, with the last part.

        Raises:
            InvalidRequest: the parts are whole and yet no state of the model.
        """
        header, content = parse(part, self._snapshots.model)
        self._first = self._first or header
        at = 0
        for name, piece in self._snapshots.pieces(self.taken):
            if name not in self._arrays:
                spec = self._snapshots.specs[name]
                self._arrays[name] = np.empty(spec.shape, spec.dtype)
            size = piece.stop - piece.start
            self._arrays[name].reshape(-1).view(np.uint8)[piece] = np.frombuffer(
                content[at : at + size], np.uint8
            )
            at += size
        self.taken += 1
        if self.taken < self._snapshots.parts:
            return None
        return self._snapshots.unpack(header.told, self._arrays)
