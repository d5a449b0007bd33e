"""Pictures made of a video: a thumbnail, and a sheet of frames.

Frames are decoded one after the other, and only the small pictures are kept, so memory does not grow with the
length of a video. A long video takes seconds; a server calls the function in a thread.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from slipway_serving.protocol.errors import Unrecoverable

if TYPE_CHECKING:
    import av

THUMBNAIL_TYPE, SPRITESHEET_TYPE = "image/webp", "image/jpeg"
THUMBNAIL_SIDE_PX = 512
TILE_SIDE_PX = 256
MAX_TILES = 16
_COLUMNS = 4
_QUALITY = 85


@dataclass(frozen=True)
class Renditions:
    """Pictures of a video, and facts about it.

    Attributes:
        thumbnail: WebP file of the first frame, at most 512 px a side.
        spritesheet: JPEG file of up to 16 frames, evenly spaced over the video, four in a row.
        frames: Number of frames.
        width: Width of the video, in pixels.
        height: Height of the video, in pixels.
        fps: Frames per second.
    """

    thumbnail: bytes
    spritesheet: bytes
    frames: int
    width: int
    height: int
    fps: float


def renditions(mp4: bytes) -> Renditions:
    """Make the pictures of a video.

    Args:
        mp4: MP4 file, whole or in fragments.

    Raises:
        Unrecoverable: The file has no video that can be decoded.
    """
    import av

    try:
        frames = _count(mp4)
        wanted = frozenset(np.linspace(0, frames - 1, min(MAX_TILES, frames)).round().astype(int).tolist())
        tiles: list[Image.Image] = []
        thumbnail = b""
        with av.open(io.BytesIO(mp4), "r", format="mp4") as container:
            stream = container.streams.video[0]
            # Each further thread would keep frames of its own in memory.
            stream.codec_context.thread_count = 1
            width, height, fps = stream.width, stream.height, float(stream.average_rate or 0)
            for place, frame in enumerate(container.decode(stream)):
                if place == 0:
                    thumbnail = _webp(_scaled(frame, THUMBNAIL_SIDE_PX))
                if place in wanted:
                    tiles.append(_scaled(frame, TILE_SIDE_PX))
    except (av.FFmpegError, IndexError, ValueError) as error:
        raise _unusable(str(error)) from None
    if not tiles:
        raise _unusable("no frame")
    return Renditions(thumbnail, _sheet(tiles), frames, width, height, fps)


def _count(mp4: bytes) -> int:
    """Return the number of frames by counting the packets, since files in fragments do not state it."""
    import av

    with av.open(io.BytesIO(mp4), "r", format="mp4") as container:
        return sum(packet.size > 0 for packet in container.demux(container.streams.video[0]))


def _scaled(frame: av.VideoFrame, longest_side_px: int) -> Image.Image:
    """Return a frame as a picture, made smaller if a side is too long."""
    scale = min(1.0, longest_side_px / max(frame.width, frame.height))
    width, height = max(1, round(frame.width * scale)), max(1, round(frame.height * scale))
    small = frame.reformat(width=width, height=height, format="rgb24", interpolation="AREA")
    return Image.fromarray(small.to_ndarray())


def _webp(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "WEBP", quality=_QUALITY)
    return file.getvalue()


def _sheet(tiles: list[Image.Image]) -> bytes:
    """Return a JPEG file of pictures side by side, row by row."""
    width, height = tiles[0].size
    columns = min(_COLUMNS, len(tiles))
    sheet = Image.new("RGB", (columns * width, -(-len(tiles) // columns) * height))
    for (left, top), tile in zip(_places(columns, len(tiles)), tiles, strict=True):
        sheet.paste(tile, (left * width, top * height))
    file = io.BytesIO()
    sheet.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def _places(columns: int, count: int) -> Iterator[tuple[int, int]]:
    return ((index % columns, index // columns) for index in range(count))


def _unusable(reason: str) -> Unrecoverable:
    return Unrecoverable(
        f"renditions: the video must be an MP4 file that can be decoded, got one that is not ({reason})"
    )
