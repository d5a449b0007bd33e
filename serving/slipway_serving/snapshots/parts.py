"""The bytes of a snapshot's parts, each of which says what it is and is checked by itself.

A part is, with little-endian numbers and JSON as the header::

    magic | format | size of the header | header | content | SHA-256 of all that is before
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from slipway_serving.errors import InvalidRequest
from slipway_serving.texts import short

PART_BYTES = 16 << 20
"""Content of a part; the last has less."""
MANIFEST = "manifest.json"
MAGIC = b"\x93SLIPWAY"
"""Begins each part; the first byte is no character of base64, nor of any other text."""

_FORMAT = 1
_HEAD = struct.Struct("<8sHI")
_DIGEST_BYTES = 32
_LARGEST_HEADER = 1 << 20


@dataclass(frozen=True)
class Header:
    """What a part says of itself.

    Attributes:
        model: that the state is of.
        files: digest of what makes it that model, see :func:`digest_of`.
        snapshot: tells the parts of one snapshot from those of others.
        part: which, from 0.
        parts: how many there are.
        size: bytes of the content.
        told: what of the state is no array.
    """

    model: str
    files: str
    snapshot: str
    part: int
    parts: int
    size: int
    told: Mapping[str, Any]


def make(header: Header, content: bytes) -> bytes:
    """Return a part."""
    text = json.dumps(asdict(header)).encode()
    part = _HEAD.pack(MAGIC, _FORMAT, len(text)) + text + content
    return part + hashlib.sha256(part).digest()


def parse(part: bytes, where: str) -> tuple[Header, memoryview]:
    """Return what a part says of itself, and its content.

    Args:
        part: whole.
        where: for messages.

    Raises:
        InvalidRequest: it is no part, cut short, changed, or of a format that is not known.
    """
    view = memoryview(part)
    header, size = _header(view, where)
    if len(part) != size:
        raise InvalidRequest(
            f"{where}: restore must be a whole part of {size} bytes, got {len(part)}; try to send it again"
        )
    body = size - _DIGEST_BYTES
    if hashlib.sha256(view[:body]).digest() != part[body:]:
        raise InvalidRequest(
            f"{where}: restore must be a part as it was given, got another checksum; try to send it again"
        )
    return header, view[body - header.size : body]


def read_parts(file: BinaryIO, where: str) -> Iterator[bytes]:
    """Yield the parts that were written to a file one after the other.

    Raises:
        InvalidRequest: the file holds something else or ends within a part.
    """
    while start := file.read(_HEAD.size):
        begun = start + file.read(_header_size(start, where))
        _, size = _header(memoryview(begun), where)
        yield begun + file.read(size - len(begun))


def digest_of(models: Iterable[Path], version: str) -> str:
    """Return a digest of the files of models: what a snapshot fits.

    Args:
        models: their folders, each with the manifest of its export, which has a hash of each file.
        version: whose files count; what an operator changes in `config.pbtxt` does not.

    Raises:
        InvalidRequest: a manifest is missing or none.
    """
    found: dict[str, str] = {}
    for model in models:
        path = model / MANIFEST
        try:
            files = dict(json.loads(path.read_text(encoding="utf-8"))["files"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(
                f"{path}: must be the manifest of an export, by which snapshots are checked, got {error!r};"
                " try exporting again"
            ) from None
        found |= {
            f"{model.name}/{name}": digest for name, digest in files.items() if name.startswith(f"{version}/")
        }
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _header_size(start: bytes, where: str) -> int:
    """Return the size of the header that follows the head of a part."""
    if len(start) < _HEAD.size or not start.startswith(MAGIC):
        raise InvalidRequest(
            f"{where}: restore must be a part of a snapshot, got {len(start)} bytes that begin with"
            f" {start[:8]!r}"
        )
    _, number, size = _HEAD.unpack_from(start)
    if number != _FORMAT or size > _LARGEST_HEADER:
        raise InvalidRequest(
            f"{where}: restore must be of format {_FORMAT}, got {number} with a header of {size} bytes;"
            " try a server of the version that gave it"
        )
    return int(size)


def _header(part: memoryview, where: str) -> tuple[Header, int]:
    """Return a part's header, and how many bytes the part should have."""
    end = _HEAD.size + _header_size(bytes(part[: _HEAD.size]), where)
    try:
        header = Header(**json.loads(bytes(part[_HEAD.size : end])))
    except (ValueError, TypeError, RecursionError) as error:
        reason = short(str(error))
        raise InvalidRequest(f"{where}: restore must have a header as it was given, got {reason}") from None
    if not isinstance(header.told, dict):
        raise InvalidRequest(
            f"{where}: restore must have a header as it was given, got told of type"
            f" {type(header.told).__name__}"
        )
    numbers = (header.part, header.parts, header.size)
    if not all(type(number) is int for number in numbers) or not 0 <= header.size <= PART_BYTES:
        raise InvalidRequest(
            f"{where}: restore must have 0 to {PART_BYTES} bytes in a part, got {short(header.size)} in"
            f" {short(header.part)} of {short(header.parts)}"
        )
    return header, end + header.size + _DIGEST_BYTES
