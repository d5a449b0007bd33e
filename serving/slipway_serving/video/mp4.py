"""MP4 encoder that takes frames as they come; the same frames always give the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import TracebackType

import av
from av.container import OutputContainer
from av.video.stream import VideoStream

from slipway_serving.system.temporary_folders import TemporaryFolder
from slipway_serving.video.frames import Frames

# The number of threads is fixed so that the same frames give the same bytes on every machine: x264 is
# deterministic for a given number only, and writes it into the stream.
_X264_OPTIONS = {"preset": "medium", "crf": "18", "threads": "4"}
# The AVX-512 code of x264 is not deterministic: 60 encodings of the same 17 frames gave 27 different files on
# an AMD EPYC, but a single one with the AVX2 code, which is as fast. Only CPUs with AVX-512 need the option.
_X264_ON_AVX512 = {"x264-params": "asm=avx2"}
# "bitexact" keeps the library's version out of the file; "faststart" moves the index to the front.
_MP4_OPTIONS = {"movflags": "+faststart", "fflags": "+bitexact"}
# H.273: 1 is BT.709 for matrix, primaries and transfer; range 1 is the limited ("MPEG") one.
_BT709 = 1
_LIMITED_RANGE = 1


@cache
def _x264_options() -> dict[str, str]:
    # psutil does not report CPU flags, and py-cpuinfo takes a second to read the same file.
    cpu = Path("/proc/cpuinfo")
    avx512 = cpu.is_file() and "avx512" in cpu.read_text(encoding="utf-8", errors="replace")
    return {**_X264_OPTIONS, **(_X264_ON_AVX512 if avx512 else {})}


def h264_stream(container: OutputContainer, width: int, height: int, fps: int, **options: str) -> VideoStream:
    """Add a stream of H.264 (yuv420p, BT.709) to a file.

    Args:
        container: Container of the file.
        width: Width, in pixels, even.
        height: Height, in pixels, even.
        fps: Frames per second, exact in the file.
        **options: Options of x264 besides those that make the encoding reproducible.
    """
    stream = container.add_stream("libx264", rate=Fraction(fps), options={**_x264_options(), **options})
    stream.width, stream.height = width, height
    stream.pix_fmt = "yuv420p"
    context = stream.codec_context
    context.time_base = Fraction(1, fps)
    context.colorspace = context.color_primaries = context.color_trc = _BT709
    context.color_range = _LIMITED_RANGE
    return stream


def video_frames(frames: Frames, first_frame: int, stream: VideoStream) -> Iterator[av.VideoFrame]:
    """Convert frames to the format and timestamps of a stream of :func:`h264_stream`.

    Args:
        frames: Frames, [frames, height, width, 3], uint8.
        first_frame: Place of the first frame in the video, from 0.
        stream: Stream that will encode the frames.
    """
    for place, pixels in enumerate(frames, first_frame):
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame = frame.reformat(format="yuv420p", dst_colorspace=_BT709, dst_color_range=_LIMITED_RANGE)
        frame.pts, frame.time_base = place, stream.codec_context.time_base
        yield frame


class Mp4Encoder:
    """Encoder of frames to H.264 (yuv420p, BT.709) in an MP4 file with its index at the front.

    Use it as a context manager: leaving it always frees the encoder and its temporary file.

    Args:
        width: Width, in pixels, even.
        height: Height, in pixels, even.
        fps: Frames per second, exact in the file.
    """

    def __init__(self, width: int, height: int, fps: int) -> None:
        # This must be a file and no buffer, since moving the index to the front reads the output again.
        self._folder = TemporaryFolder("slipway-video-")
        self._path = self._folder.path / "video.mp4"
        self._container = av.open(str(self._path), "w", format="mp4", options=_MP4_OPTIONS)
        self._stream = h264_stream(self._container, width, height, fps)
        self._frames = 0

    def __enter__(self) -> Mp4Encoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._container.close()
        self._folder.remove()

    def add(self, frames: Frames) -> None:
        """Encode further frames, [frames, height, width, 3], uint8."""
        for frame in video_frames(frames, self._frames, self._stream):
            self._container.mux(self._stream.encode(frame))
        self._frames += len(frames)

    def finish(self) -> bytes:
        """Return the whole file; no frame may be added afterwards."""
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._path.read_bytes()
