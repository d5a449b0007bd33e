"""Facts about fragments of an MP4 file: its header, its codec and the number of its frames.

Fragment 0 of a world has the file's header, and later ones do not. A viewer that joins later, or a world that
begins from a state, needs the header again, so the gateway keeps it (ISO/IEC 14496-12).
"""

from __future__ import annotations

from collections.abc import Iterator

_HEADER = (b"ftyp", b"moov")
_CONTAINERS = (b"moof", b"traf", b"moov", b"trak", b"mdia", b"minf", b"stbl")


def header_of(fragment: bytes) -> bytes:
    """Return the header with which a fragment begins; empty if it has none."""
    return b"".join(fragment[start:end] for kind, start, end in _boxes(fragment) if kind in _HEADER)


def count_frames(fragment: bytes) -> int:
    """Return the number of frames in a fragment: the samples of its `trun` boxes."""
    return sum(
        int.from_bytes(fragment[start + 12 : start + 16], "big")
        for kind, start, _ in _all_boxes(fragment, 0, len(fragment))
        if kind == b"trun"
    )


def mime_type(header: bytes) -> str:
    """Return the type with the codec, as a browser's MediaSource needs it, from the header's `avcC` box."""
    at = header.find(b"avcC")
    profile = header[at + 5 : at + 8].hex().upper() if at >= 0 else ""
    return f'video/mp4; codecs="avc1.{profile}"' if len(profile) == 6 else "video/mp4"


def _boxes(data: bytes, start: int = 0, end: int | None = None) -> Iterator[tuple[bytes, int, int]]:
    """Yield the kind, the start and the end of each box."""
    end = len(data) if end is None else end
    while start + 8 <= end:
        size = int.from_bytes(data[start : start + 4], "big")
        if not 8 <= size <= end - start:
            return
        yield data[start + 4 : start + 8], start, start + size
        start += size


def _all_boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield each box and the boxes inside of it."""
    for kind, first, last in _boxes(data, start, end):
        yield kind, first, last
        if kind in _CONTAINERS:
            yield from _all_boxes(data, first + 8, last)
