"""Frames as JPEG files: about a tenth of the bytes, and any browser shows them without a decoder."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from slipway_serving.protocol import images
from slipway_serving.protocol.events import Event, as_base64, output_field
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.video.frames import Frames

QUALITY = 90


@dataclass(frozen=True)
class JpegFrame(Event):
    """One frame of a video.

    Attributes:
        jpeg: Bytes of a JPEG file, or base64 text of them for protocols that carry text only.
        first_frame: Place of the frame in the video, from 0.
        elapsed_s: Time since the request began, in seconds.
    """

    known_by: ClassVar[tuple[str, ...]] = ("jpeg",)

    jpeg: Annotated[bytes, output_field("bytes of a JPEG file, or base64 text of them")]
    first_frame: Annotated[int, output_field("index of the frame in the video, from 0", "INT32")]
    elapsed_s: Annotated[float, output_field("time since the work began, in seconds")]

    @property
    def data(self) -> bytes:
        """Bytes of the file, decoded if it came as base64 text."""
        return images.decode_if_base64(self.jpeg)


def jpeg_frames(
    frames: Frames, first_frame: int, interruption: Interruption, *, as_text: bool = False
) -> Iterator[JpegFrame]:
    """Encode each of some consecutive frames as a JPEG file.

    Args:
        frames: Frames, [frames, height, width, 3], uint8.
        first_frame: Place of the first frame in the video, from 0.
        interruption: Clock of the request.
        as_text: True for base64 text, False for bytes.
    """
    from PIL import Image

    for place, pixels in enumerate(frames, first_frame):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, format="JPEG", quality=QUALITY)
        data = as_base64(file.getvalue()) if as_text else file.getvalue()
        yield JpegFrame(data, place, interruption.elapsed_s())
