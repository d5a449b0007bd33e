"""State of a world as one file, which a viewer receives in pieces and sends back in pieces of any size.

The file is a sequence of records, each of which has its length before it (4 bytes, big-endian). The first
record is JSON: what the gateway must know to go on. The others are the parts of the server's snapshot. The
gateway holds no more than one record at a time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from slipway_gateway.realtime.limits import PIECE_BYTES
from slipway_gateway.realtime.values import decode_picture
from slipway_serving.protocol.errors import InvalidRequest

_LENGTH = struct.Struct(">I")
_LARGEST_FACTS, _LARGEST_PART = 64 << 10, 20 << 20
_MAGIC = "slipway world"
_WHERE = "state"


@dataclass(frozen=True)
class WorldFacts:
    """What the gateway knows about a world beside the server's snapshot.

    Attributes:
        model: Name of the served model.
        format: Name of the viewer's format.
        fps: Frames per second.
        frames: Number of frames so far.
        frames_left: Number of frames until the world's end; None if that is not known.
        header: Header of the MP4 file, as base64 text; empty in other formats.
    """

    model: str
    format: str
    fps: int
    frames: int
    frames_left: int | None
    header: str

    @property
    def header_bytes(self) -> bytes:
        """Header of the MP4 file."""
        return decode_picture(self.header)

    def to_json(self) -> bytes:
        """Return the first record."""
        return json.dumps({"kind": _MAGIC, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, record: bytes) -> WorldFacts:
        """Read the first record.

        Raises:
            InvalidRequest: It is not the first record of a world's state.
        """
        try:
            values = json.loads(record)
            facts = cls(**{name: value for name, value in values.items() if name != "kind"})
            facts._check(values["kind"])
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            raise InvalidRequest(
                f"{_WHERE}: file must be a world's state as session.snapshot gives it, got another one"
            ) from None
        return facts

    def _check(self, kind: object) -> None:
        kinds: dict[str, Any] = {"model": str, "format": str, "fps": int, "frames": int, "header": str}
        if any(type(getattr(self, name)) is not wanted for name, wanted in kinds.items()):
            raise TypeError
        if (
            kind != _MAGIC
            or not (0 < self.fps <= 1000 and 0 <= self.frames < 2**31)
            or type(self.frames_left)
            not in (
                int,
                type(None),
            )
        ):
            raise ValueError
        decode_picture(self.header)


def pieces_of(record: bytes) -> Iterator[bytes]:
    """Yield a record with its length, in pieces that a binary message may carry."""
    data = _LENGTH.pack(len(record)) + record
    yield from (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))


async def read_records(pieces: AsyncIterator[bytes], total_bytes: int) -> AsyncIterator[bytes]:
    """Yield the records of a file.

    Args:
        pieces: Pieces of the file.
        total_bytes: Size of the file in bytes.

    Raises:
        InvalidRequest: A record is too large, or the file ends in one.
    """
    buffer, received, limit = bytearray(), 0, _LARGEST_FACTS
    while received < total_bytes:
        piece = await anext(pieces)
        received += len(piece)
        buffer += piece
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            if not 0 < length <= limit:
                raise InvalidRequest(f"{_WHERE}: record must have 1 to {limit} bytes, got {length}")
            if len(buffer) < _LENGTH.size + length:
                break
            yield bytes(buffer[_LENGTH.size : _LENGTH.size + length])
            del buffer[: _LENGTH.size + length]
            limit = _LARGEST_PART
    if buffer or received != total_bytes:
        raise InvalidRequest(
            f"{_WHERE}: file must have {total_bytes} bytes of whole records, got {received} bytes and"
            f" {len(buffer)} of them left over"
        )
