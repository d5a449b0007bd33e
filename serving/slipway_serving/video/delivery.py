"""Delivery of frames to the caller in events: pixels or an MP4 file, as bytes or as base64 text.

:func:`deliver` takes the frames of a finite video as they are decoded, in the order of time.
:func:`frame_parts` takes any consecutive frames: of a world that continues, or of a video whose sections are
made in another order. :func:`fragment_parts` encodes such frames. Every event stays below gRPC's default
message limit of 4 MiB, as text too, unless a single frame is larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.protocol.events import BASE64, FramesPart, VideoPart, as_base64
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.video.fragments import mp4_fragment
from slipway_serving.video.frames import Frames
from slipway_serving.video.mp4 import Mp4Encoder

CHUNK_BYTES = 3 << 20
# Base64 makes 4 characters of 3 bytes, so 2.25 MiB become 3 MiB. Since 3 divides the size, only the last
# chunk is padded, and each chunk can be decoded by itself.
BASE64_CHUNK_BYTES = CHUNK_BYTES // 4 * 3


@dataclass(frozen=True)
class Delivery:
    """Form and size of a finite video for its delivery.

    Attributes:
        where: Name of the model or request, for messages.
        output: Form of the result, one of :data:`slipway_serving.protocol.video.fields.OUTPUTS`.
        frames: Number of frames.
        height: Height, in pixels.
        width: Width, in pixels.
        fps: Frames per second of the file.
    """

    where: str
    output: str
    frames: int
    height: int
    width: int
    fps: int


class FrameChunks:
    """Buffer that regroups frames into chunks of whole frames below a number of bytes.

    Args:
        frames: Total number of frames that will be added.
        height: Height, in pixels.
        width: Width, in pixels.
        most_bytes: Largest size of a chunk, in bytes, unless one frame is larger.

    Attributes:
        count: Total number of chunks.
    """

    def __init__(self, frames: int, height: int, width: int, most_bytes: int = CHUNK_BYTES) -> None:
        self._per_chunk = max(1, most_bytes // (height * width * 3))
        self._remaining = frames
        self._buffer: list[Frames] = []
        self.count = -(-frames // self._per_chunk)

    def add(self, frames: Frames) -> Iterator[Frames]:
        """Add frames and yield the chunks that they complete."""
        self._buffer += [frames[index : index + 1] for index in range(len(frames))]
        self._remaining -= len(frames)
        while len(self._buffer) >= self._per_chunk or (self._buffer and self._remaining == 0):
            yield np.concatenate(self._buffer[: self._per_chunk])
            del self._buffer[: self._per_chunk]


def deliver(
    delivery: Delivery, decoded: Iterable[Frames], interruption: Interruption
) -> Iterator[FramesPart | VideoPart]:
    """Turn the frames of a finite video, in the order of time, into the parts of its result.

    Args:
        delivery: Form and size of the video.
        decoded: Frames as they are decoded.
        interruption: Clock of the request.

    Raises:
        Unrecoverable: There are more or fewer frames than the request asked for.
    """
    counted = _check_count(delivery, decoded)
    if delivery.output.startswith("frames"):
        yield from _frames(delivery, counted, interruption)
        return
    with Mp4Encoder(delivery.width, delivery.height, delivery.fps) as encoder:
        for frames in counted:
            encoder.add(frames)
        video = encoder.finish()
    parts = base64_chunks(video) if delivery.output.endswith(BASE64) else byte_chunks(video)
    for chunk, part in enumerate(parts):
        yield VideoPart(chunk, len(parts), interruption.elapsed_s(), part)


def frame_parts(
    frames: Frames,
    first_frame: int,
    interruption: Interruption,
    *,
    as_text: bool = False,
    final: bool = True,
    frames_total: int | None = None,
) -> Iterator[FramesPart]:
    """Turn consecutive frames into parts, independently of the frames before and after them.

    Args:
        frames: Frames, [frames, height, width, 3], uint8.
        first_frame: Place of the first frame in the video, from 0.
        interruption: Clock of the request.
        as_text: True for base64 text, False for arrays.
        final: True if no later part changes these frames.
        frames_total: Number of frames of the whole video, if known.
    """
    count, height, width, _ = frames.shape
    chunks = FrameChunks(count, height, width, _most_bytes(as_text))
    for pixels in chunks.add(frames):
        part = FramesPart(
            pixels, first_frame, interruption.elapsed_s(), final=final, frames_total=frames_total
        )
        yield part.as_text() if as_text else part
        first_frame += len(pixels)


def fragment_parts(
    frames: Frames,
    first_frame: int,
    chunk: int,
    fps: int,
    frames_total: int,
    interruption: Interruption,
    *,
    as_text: bool,
) -> Iterator[VideoPart]:
    """Encode consecutive frames as parts of an MP4 file, independently of the frames before and after them.

    No state is kept between parts: each part is a fragment of the file by itself, see
    :mod:`slipway_serving.video.fragments`. The part with the video's first frame has the file's header.

    Args:
        frames: Frames, [frames, height, width, 3], uint8.
        first_frame: Place of the first frame in the video, from 0.
        chunk: Number of the first part.
        fps: Frames per second.
        frames_total: Number of frames of the whole video.
        interruption: Clock of the request.
        as_text: True for base64 text, False for bytes.
    """
    # The number of a fragment must grow with time, so the place of its first frame serves as its number.
    fragment = mp4_fragment(frames, first_frame, first_frame, fps, interruption).fragment
    if len(fragment) > _most_bytes(as_text) and len(frames) > 1:
        half = len(frames) // 2
        for piece, start in ((frames[:half], first_frame), (frames[half:], first_frame + half)):
            for part in fragment_parts(piece, start, chunk, fps, frames_total, interruption, as_text=as_text):
                yield part
                chunk += 1
        return
    yield VideoPart(
        chunk,
        None,
        interruption.elapsed_s(),
        as_base64(fragment) if as_text else fragment,
        first_frame=first_frame,
        part_frames=len(frames),
        frames_total=frames_total,
    )


def byte_chunks(data: bytes) -> list[bytes]:
    """Cut bytes into chunks of at most 3 MiB."""
    return [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]


def base64_chunks(data: bytes) -> list[bytes]:
    """Cut bytes into base64 texts of at most 3 MiB; each text can be decoded by itself."""
    return [
        as_base64(data[start : start + BASE64_CHUNK_BYTES])
        for start in range(0, len(data), BASE64_CHUNK_BYTES)
    ]


def _frames(
    delivery: Delivery, decoded: Iterable[Frames], interruption: Interruption
) -> Iterator[FramesPart]:
    """Yield the frames of a finite video as numbered parts of pixels."""
    as_text = delivery.output.endswith(BASE64)
    chunks = FrameChunks(delivery.frames, delivery.height, delivery.width, _most_bytes(as_text))
    chunk = sent = 0
    for frames in decoded:
        for pixels in chunks.add(frames):
            part = FramesPart(
                pixels,
                sent,
                interruption.elapsed_s(),
                frames_total=delivery.frames,
                chunk=chunk,
                chunks=chunks.count,
            )
            yield part.as_text() if as_text else part
            chunk, sent = chunk + 1, sent + len(pixels)


def _check_count(delivery: Delivery, decoded: Iterable[Frames]) -> Iterator[Frames]:
    """Yield the frames and check at the end that their number is the requested one."""
    count = 0
    for frames in decoded:
        count += len(frames)
        yield frames
    if count != delivery.frames:
        raise Unrecoverable(
            f"{delivery.where}: the decoder must return {delivery.frames} frames, got {count}"
        )


def _most_bytes(as_text: bool) -> int:
    return BASE64_CHUNK_BYTES if as_text else CHUNK_BYTES
