"""Text tags of MP4 and PNG files from callers, read without decoding pictures or video.

Files from callers may be hostile, so no media library sees them. :func:`read_tags` walks over the boxes of an
MP4 file (ISO/IEC 14496-12, and Apple's metadata keys) or the chunks of a PNG file, never reads beyond the
file's bytes, and bounds the number and the size of what it reads, unpacked texts included.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from slipway_serving.protocol.errors import InvalidRequest

MAX_TAG_BYTES = 1 << 18
"""Largest size of a tag, in bytes."""
MAX_TAGS = 64
"""Largest number of tags that are read from a file."""
# A video of an hour with a fragment for each second has 7,200 boxes.
_MAX_PARTS = 100_000
_MP4_MARK = b"ftyp"
_PNG_MARK = b"\x89PNG\r\n\x1a\n"
_UTF8 = 1
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_WHERE = "settings: file"


def read_tags(data: bytes) -> dict[str, str]:
    """Return the text tags of an MP4 or PNG file by name.

    Args:
        data: Bytes of the file, from a caller.

    Raises:
        InvalidRequest: The file is neither MP4 nor PNG, is truncated or damaged, or has too many or too large
            tags; the message says which.
    """
    if data.startswith(_PNG_MARK):
        return _png_tags(memoryview(data))
    if data[4:8] == _MP4_MARK:
        return _mp4_tags(memoryview(data))
    raise InvalidRequest(
        f"{_WHERE} must be an MP4 or PNG file, got bytes that begin with {data[:8]!r}; try a file that this"
        " server has made"
    )


def _mp4_tags(data: memoryview) -> dict[str, str]:
    """Return the tags below ``moov/udta/meta`` or ``moov/meta``."""
    movie = _first(data, b"moov")
    if movie is None:
        raise InvalidRequest(f"{_WHERE} must be a complete MP4 file, got one without its header (moov)")
    user_data = _first(movie, b"udta")
    for parent in (user_data, movie):
        meta = None if parent is None else _first(parent, b"meta")
        if meta is not None and (found := _meta_tags(meta)):
            return found
    return {}


def _meta_tags(meta: memoryview) -> dict[str, str]:
    # In QuickTime files the box has no version in front of its parts.
    body = meta if bytes(meta[4:8]) == b"hdlr" else meta[4:]
    keys, items = _first(body, b"keys"), _first(body, b"ilst")
    if keys is None or items is None:
        return {}
    # After version and number of keys, each key is one box whose kind is its name space.
    names = [bytes(name) for _, name in _boxes(keys[8:], MAX_TAGS)]
    tags: dict[str, str] = {}
    for kind, item in _boxes(items, MAX_TAGS):
        place, value = int.from_bytes(kind, "big") - 1, _first(item, b"data")
        if value is None or len(value) < 8 or int.from_bytes(value[:4], "big") != _UTF8:
            continue
        if 0 <= place < len(names):
            name = _text(names[place], "utf-8", "a name")
            _check_size(name, len(value) - 8)
            tags[name] = _text(bytes(value[8:]), "utf-8", name)
    return tags


def _first(data: memoryview, wanted: bytes) -> memoryview | None:
    """Return the content of the first box of a kind, or None."""
    return next((content for kind, content in _boxes(data, _MAX_PARTS) if kind == wanted), None)


def _boxes(data: memoryview, most: int) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the kind and the content of each box (ISO/IEC 14496-12, 4.2)."""
    start = 0
    for _ in range(most):
        if start >= len(data):
            return
        size, head = int.from_bytes(data[start : start + 4], "big"), 8
        if size == 1:
            size, head = int.from_bytes(data[start + 8 : start + 16], "big"), 16
        elif size == 0:
            size = len(data) - start
        if not head <= size <= len(data) - start:
            raise InvalidRequest(
                f"{_WHERE} must be a complete MP4 file, got one with a part of {size} bytes where"
                f" {len(data) - start} bytes are left"
            )
        yield bytes(data[start + 4 : start + 8]), data[start + head : start + size]
        start += size
    if start < len(data):
        raise InvalidRequest(f"{_WHERE} must be an MP4 file with at most {most} parts, got one with more")


def _png_tags(data: memoryview) -> dict[str, str]:
    """Return the texts of a PNG file (PNG specification, 11.3.3)."""
    tags: dict[str, str] = {}
    for kind, content in _chunks(data):
        if kind not in _PNG_TEXTS:
            continue
        if len(tags) == MAX_TAGS:
            raise InvalidRequest(f"{_WHERE} must be a PNG file with at most {MAX_TAGS} texts, got more")
        raw_name, separator, rest = bytes(content).partition(b"\0")
        if not separator:
            raise InvalidRequest(f"{_WHERE} must be a valid PNG file, got one with a text without a name")
        name = _text(raw_name, "latin-1", "a name")
        tags[name] = _png_text(kind, name, rest)
    return tags


def _chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the kind and the content of each chunk up to the end of the picture."""
    start = len(_PNG_MARK)
    for _ in range(_MAX_PARTS):
        size = int.from_bytes(data[start : start + 4], "big")
        end = start + 12 + size
        if len(data) - start < 12 or end > len(data):
            raise InvalidRequest(f"{_WHERE} must be a complete PNG file, got one that breaks off")
        kind, content = bytes(data[start + 4 : start + 8]), data[start + 8 : end - 4]
        if kind in _PNG_TEXTS and zlib.crc32(data[start + 4 : end - 4]) != int.from_bytes(
            data[end - 4 : end], "big"
        ):
            raise InvalidRequest(f"{_WHERE} must be an intact PNG file, got one with a damaged text")
        if kind == b"IEND":
            return
        yield kind, content
        start = end
    raise InvalidRequest(f"{_WHERE} must be a PNG file with at most {_MAX_PARTS} parts, got more")


def _png_text(kind: bytes, name: str, rest: bytes) -> str:
    """Return the text after the name in a chunk."""
    if kind == b"tEXt":
        _check_size(name, len(rest))
        return _text(rest, "latin-1", name)
    if kind == b"zTXt":
        return _text(_unpacked(rest[1:], name), "latin-1", name)
    is_packed, parts = rest[:1] == b"\1", rest[2:].split(b"\0", 2)
    if len(parts) < 3:
        raise InvalidRequest(f"{_WHERE} must be a valid PNG file, got one with a broken text {name[:40]!r}")
    text = _unpacked(parts[2], name) if is_packed else parts[2]
    _check_size(name, len(text))
    return _text(text, "utf-8", name)


def _unpacked(packed: bytes, name: str) -> bytes:
    """Unpack a text, no further than to the largest size."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packed, MAX_TAG_BYTES + 1)
    except zlib.error:
        raise InvalidRequest(
            f"{_WHERE} must be an intact PNG file, got one with a damaged text {name[:40]!r}"
        ) from None
    _check_size(name, len(text))
    return text


def _text(raw: bytes, encoding: str, name: str) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        raise InvalidRequest(f"{_WHERE} must have tags of text, got other bytes in {name[:40]!r}") from None


def _check_size(name: str, size_bytes: int) -> None:
    if size_bytes > MAX_TAG_BYTES:
        raise InvalidRequest(
            f"{_WHERE} must have tags of at most {MAX_TAG_BYTES} bytes, got a larger one, {name[:40]!r}"
        )
