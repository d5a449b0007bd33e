"""Small videos as the servers make them: whole, in fragments, and as pixels."""

from __future__ import annotations

import io
from typing import NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from slipway_serving.runtime.interruption import Interruption
from slipway_serving.video.fragments import mp4_fragment
from slipway_serving.video.mp4 import Mp4Encoder

FPS = 16


class Packet(NamedTuple):
    data: bytes
    shown_s: float
    decoded_s: float
    is_key: bool


def pixels(frames: int, height: int = 64, width: int = 96) -> NDArray[np.uint8]:
    """Frames of one grey each, so that a picture tells which frame it shows; the left half is red."""
    greys = np.linspace(0, 255, frames).astype(np.uint8)
    video = np.broadcast_to(greys[:, None, None, None], (frames, height, width, 3)).copy()
    video[:, :, : width // 2] = (200, 20, 20)
    return video


def whole(frames: NDArray[np.uint8]) -> bytes:
    with Mp4Encoder(frames.shape[2], frames.shape[1], FPS) as encoder:
        encoder.add(frames)
        return encoder.finish()


def fragmented(frames: NDArray[np.uint8], each: int = 5) -> bytes:
    clock = Interruption("test", lambda: False)
    parts = (
        mp4_fragment(frames[start : start + each], start, start, FPS, clock)
        for start in range(0, len(frames), each)
    )
    return b"".join(part.data for part in parts)


def packets(mp4: bytes) -> list[Packet]:
    """The packets of a video with their times."""
    with av.open(io.BytesIO(mp4), "r", format="mp4") as container:
        return [
            Packet(
                bytes(packet),
                float((packet.pts or 0) * packet.time_base),
                float((packet.dts or 0) * packet.time_base),
                packet.is_keyframe,
            )
            for packet in container.demux(container.streams.video[0])
            if packet.size
        ]


def boxes(mp4: bytes) -> list[str]:
    """The kinds of a file's boxes in their order."""
    found, start = [], 0
    while start < len(mp4):
        found.append(mp4[start + 4 : start + 8].decode())
        start += int.from_bytes(mp4[start : start + 4], "big")
    return found
