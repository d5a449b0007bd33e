"""Binary format of the parts of a snapshot; each part describes itself and has its own checksum.

The numbers are little-endian and the header is JSON::

    magic | format | size of the header | header | content | SHA-256 of everything before it
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.texts import short

PART_BYTES = 16 << 20
"""Size of the content of a part, in bytes; the last part may be smaller."""
MANIFEST = "manifest.json"
MAGIC = b"\x93SLIPWAY"
"""First bytes of each part; the very first byte occurs in no base64 and no other text."""

_FORMAT = 1
_HEAD = struct.Struct("<8sHI")
_DIGEST_BYTES = 32
_LARGEST_HEADER = 1 << 20


@dataclass(frozen=True)
class Header:
    """Header of a part.

    Attributes:
        model: Name of the model of the session.
        files: Digest of the model's files, see :func:`digest_of`.
        snapshot: Name that all parts of one snapshot have in common and no other snapshot has.
        part: Number of the part, from 0.
        parts: Number of parts of the snapshot.
        size: Size of the content, in bytes.
        told: Values of the state that are not arrays.
    """

    model: str
    files: str
    snapshot: str
    part: int
    parts: int
    size: int
    told: Mapping[str, Any]


def make(header: Header, content: bytes) -> bytes:
    """Return the bytes of a part."""
    text = json.dumps(asdict(header)).encode()
    part = _HEAD.pack(MAGIC, _FORMAT, len(text)) + text + content
    return part + hashlib.sha256(part).digest()


def parse(part: bytes | memoryview, where: str, field: str = "restore") -> tuple[Header, memoryview]:
    """Return the header and the content of a part.

    Args:
        part: Bytes of the whole part.
        where: Name of the model, for messages.
        field: Name of the request's field that carries the part, for messages.

    Raises:
        InvalidRequest: The bytes are not a part, are incomplete or changed, or have an unknown format.
    """
    view = memoryview(part)
    header, size = _header(view, where, field)
    if len(part) != size:
        raise InvalidRequest(
            f"{where}: {field} must be a complete part of {size} bytes, got {len(part)}; try sending it again"
        )
    body = size - _DIGEST_BYTES
    if hashlib.sha256(view[:body]).digest() != part[body:]:
        raise InvalidRequest(
            f"{where}: {field} must be an unchanged part, got one with a wrong checksum; try sending it again"
        )
    return header, view[body - header.size : body]


def read_parts(file: BinaryIO, where: str, field: str = "restore") -> Iterator[bytes]:
    """Yield the parts of a file that contains them one after the other; :func:`parse` checks each.

    Args:
        file: File, open for reading.
        where: Name of the model or file, for messages.
        field: Name of the request's field that carries the parts, for messages.

    Raises:
        InvalidRequest: The file contains something else or ends within a part.
    """
    while start := file.read(_HEAD.size):
        head = start + file.read(_header_size(start, where, field))
        _, size = _header(memoryview(head), where, field)
        yield head + file.read(size - len(head))


def digest_of(models: Iterable[Path], version: str) -> str:
    """Return a digest of the files of models; a snapshot fits only models with the same digest.

    Args:
        models: Folders of the models, each with the manifest of its export, which has a hash of each file.
        version: Model version whose files count; a change of `config.pbtxt` by an operator does not count.

    Raises:
        InvalidRequest: A manifest is missing or is not the manifest of an export.
    """
    found: dict[str, str] = {}
    for model in models:
        path = model / MANIFEST
        try:
            files = dict(json.loads(path.read_text(encoding="utf-8"))["files"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(
                f"{path}: must be the manifest of an export, which tells whether a snapshot fits, got"
                f" {error!r};"
                " try exporting again"
            ) from None
        found |= {
            f"{model.name}/{name}": digest for name, digest in files.items() if name.startswith(f"{version}/")
        }
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _header_size(start: bytes, where: str, field: str) -> int:
    """Return the size of the JSON header, from the first bytes of a part."""
    if len(start) < _HEAD.size or not start.startswith(MAGIC):
        raise InvalidRequest(
            f"{where}: {field} must be a part of a snapshot, got {len(start)} bytes that begin with"
            f" {start[:8]!r}"
        )
    _, number, size = _HEAD.unpack_from(start)
    if number != _FORMAT or size > _LARGEST_HEADER:
        raise InvalidRequest(
            f"{where}: {field} must be of format {_FORMAT}, got {number} with a header of {size} bytes;"
            " try a server of the version that made the snapshot"
        )
    return int(size)


def _header(part: memoryview, where: str, field: str) -> tuple[Header, int]:
    """Return a part's header, and the number of bytes that the part should have."""
    end = _HEAD.size + _header_size(bytes(part[: _HEAD.size]), where, field)
    try:
        header = Header(**json.loads(bytes(part[_HEAD.size : end])))
    except (ValueError, TypeError, RecursionError) as error:
        reason = short(str(error))
        raise InvalidRequest(f"{where}: {field} must have an unchanged header, got {reason}") from None
    if not isinstance(header.told, dict):
        raise InvalidRequest(
            f"{where}: {field} must have an unchanged header, got told of type {type(header.told).__name__}"
        )
    numbers = (header.part, header.parts, header.size)
    if not all(type(number) is int for number in numbers) or not 0 <= header.size <= PART_BYTES:
        raise InvalidRequest(
            f"{where}: {field} must have 0 to {PART_BYTES} bytes in a part, got {short(header.size)} in"
            f" {short(header.part)} of {short(header.parts)}"
        )
    return header, end + header.size + _DIGEST_BYTES
