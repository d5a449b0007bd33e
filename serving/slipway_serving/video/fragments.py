"""Fragments of a growing MP4 file, which a browser plays while further fragments arrive.

Each fragment is encoded by itself, without state from earlier ones, and begins with a key frame. The first
has the file's header. Concatenated, the fragments are the file, with every frame at its place in time.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from slipway_serving.protocol import images
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.protocol.events import Event, as_base64, output_field
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.video.frames import Frames

# "empty_moov" puts all that a player must know first into a header without frames; "frag_discont" keeps the
# timestamps of a fragment that is not the first, and so do "use_editlist" and "avoid_negative_ts".
_MP4_OPTIONS = {
    "movflags": "+frag_custom+empty_moov+default_base_moof+frag_discont+skip_trailer",
    "use_editlist": "0",
    "avoid_negative_ts": "disabled",
    "fflags": "+bitexact",
}
_HEAD = ("ftyp", "moov")


@dataclass(frozen=True)
class Mp4Fragment(Event):
    """Fragment of an MP4 file with consecutive frames of a video.

    Attributes:
        fragment: Bytes to append to the earlier fragments, or base64 text of them for protocols that carry
            text only.
        first_frame: Place of the first frame in the video, from 0.
        elapsed_s: Time since the request began, in seconds.
    """

    known_by: ClassVar[tuple[str, ...]] = ("fragment",)

    fragment: Annotated[bytes, output_field("bytes that continue the MP4 file, or base64 text of them")]
    first_frame: Annotated[int, output_field("index of the first frame in the video, from 0", "INT32")]
    elapsed_s: Annotated[float, output_field("time since the work began, in seconds")]

    @property
    def data(self) -> bytes:
        """Bytes of the fragment, decoded if it came as base64 text."""
        return images.decode_if_base64(self.fragment)


def mp4_fragment(
    frames: Frames,
    first_frame: int,
    number: int,
    fps: int,
    interruption: Interruption,
    *,
    as_text: bool = False,
) -> Mp4Fragment:
    """Encode consecutive frames as a fragment; the same frames give the same bytes.

    Args:
        frames: Frames, [frames, height, width, 3], uint8; height and width are even.
        first_frame: Place of the first frame in the video, from 0.
        number: Number of the fragment in its file; fragment 0 also has the file's header.
        fps: Frames per second.
        interruption: Clock of the request.
        as_text: True for base64 text, False for bytes.
    """
    import av

    from slipway_serving.video.mp4 import h264_stream, video_frames

    file = io.BytesIO()
    options = {**_MP4_OPTIONS, "fragment_index": str(number + 1)}
    with av.open(file, "w", format="mp4", options=options) as container:
        # With "zerolatency" no frame waits for a later one, so decoding and presentation times are the same.
        stream = h264_stream(container, frames.shape[2], frames.shape[1], fps, tune="zerolatency")
        for frame in (*video_frames(frames, first_frame, stream), None):
            container.mux(stream.encode(frame))
    data = file.getvalue()
    if number:
        data = b"".join(box for kind, box in _boxes(data) if kind not in _HEAD)
    return Mp4Fragment(as_base64(data) if as_text else data, first_frame, interruption.elapsed_s())


def _boxes(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the kind and the bytes of each box of a file (ISO/IEC 14496-12, 4.2)."""
    start = 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 4], "big")
        if not 8 <= size <= len(data) - start:
            raise Unrecoverable(
                f"MP4: a box must end within the file, got one of {size} bytes with {len(data) - start}"
                " bytes left"
            )
        yield data[start + 4 : start + 8].decode("latin-1"), data[start : start + size]
        start += size
