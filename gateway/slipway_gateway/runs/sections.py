"""Picture of a video that a server delivers in sections, perhaps the last one first.

Each section is a part of the result with its place in time: pixels, or a fragment of an MP4 file. The sheet
shows a frame of each section at its place, and grey where a section is missing, so a person sees the video
grow in either order. Decoding takes a while: it happens when the picture is asked for, in that thread.
"""

from __future__ import annotations

import io
import logging
import math
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.events import FramesPart, VideoPart

if TYPE_CHECKING:
    from PIL.Image import Image

_log = logging.getLogger(__name__)
Part = FramesPart | VideoPart
_MOST_COLUMNS, _MOST_CELLS = 6, 60
_LONGEST_SIDE_PX, _GAP_PX = 320, 4
_MISSING, _BETWEEN = 120, 0
_HEAD = (b"ftyp", b"moov")


@dataclass
class SectionSheet:
    """Sheet of the sections that have arrived.

    Attributes:
        width: Width of the video, in pixels.
        height: Height of the video, in pixels.
        fps: Frames per second.
    """

    width: int
    height: int
    fps: int
    _cells: dict[int, Part | Image] = field(default_factory=dict)
    _is_new: bool = False
    _frames: int = 0
    _longest: int = 1

    def add(self, part: Part) -> None:
        """Add a part; one without a place in a video of known length is ignored."""
        count = part.part_frames if isinstance(part, VideoPart) else len(part.pixels)
        if part.draft_step is not None or part.first_frame is None or not part.frames_total or not count:
            return
        self._frames, self._longest = part.frames_total, max(self._longest, count)
        self._cells[part.first_frame] = part
        self._is_new = True

    def take_new(self) -> bool:
        """Return True once after each addition."""
        is_new, self._is_new = self._is_new, False
        return is_new and self._frames > self._longest

    def picture(self) -> NDArray[np.uint8]:
        """Return the sheet, [height, width, 3], uint8."""
        from PIL import Image

        count = min(_MOST_CELLS, max(1, round(self._frames / self._longest)))
        columns = min(count, _MOST_COLUMNS)
        rows = -(-count // columns)
        scale = min(1.0, _LONGEST_SIDE_PX / max(self.width, self.height))
        size = max(1, round(self.width * scale)), max(1, round(self.height * scale))
        step = size[0] + _GAP_PX, size[1] + _GAP_PX
        whole = (columns * step[0] - _GAP_PX, rows * step[1] - _GAP_PX)
        sheet = Image.new("RGB", whole, (_BETWEEN,) * 3)
        empty = Image.new("RGB", size, (_MISSING,) * 3)
        for place in range(count):
            sheet.paste(empty, (place % columns * step[0], place // columns * step[1]))
        for first_frame, part in sorted(self._cells.items()):
            cell = self._cells[first_frame] = self._cell(part, size)
            place = min(count - 1, math.floor(first_frame * count / self._frames + 0.5))
            sheet.paste(cell, (place % columns * step[0], place // columns * step[1]))
        return np.asarray(sheet)

    def _cell(self, part: Part | Image, size: tuple[int, int]) -> Image:
        """Return a small picture of a section's middle frame; a part becomes one only once."""
        import av
        from PIL import Image

        if isinstance(part, FramesPart):
            return Image.fromarray(part.pixels[len(part.pixels) // 2]).resize(size)
        if isinstance(part, VideoPart):
            try:
                frame = _middle_frame(part.video, part.part_frames or 1, self.width, self.height, self.fps)
            except (av.FFmpegError, OSError, ValueError) as error:
                # The picture is a courtesy: the joined video is checked where it is stored.
                _log.warning("a section of a video cannot be shown: %s", error)
                return Image.new("RGB", size, (_MISSING,) * 3)
            return Image.fromarray(frame).resize(size)
        return part


def _middle_frame(fragment: bytes, count: int, width: int, height: int, fps: int) -> NDArray[np.uint8]:
    """Return the middle frame of a fragment."""
    import av

    data = fragment if fragment[4:8] == _HEAD[0] else _header(width, height, fps) + fragment
    with av.open(io.BytesIO(data), "r") as container:
        frames = list(islice(container.decode(video=0), count // 2 + 1))
    if not frames:
        raise OSError("a fragment of the video has no frame")
    return np.asarray(frames[-1].to_ndarray(format="rgb24"), np.uint8)


def _header(width: int, height: int, fps: int) -> bytes:
    """Return the header of a file of such fragments; only the part with the first frame brings it."""
    import av

    from slipway_serving.video.mp4 import h264_stream, video_frames

    file = io.BytesIO()
    options = {"movflags": "+frag_custom+empty_moov+default_base_moof+skip_trailer"}
    with av.open(file, "w", format="mp4", options=options) as container:
        stream = h264_stream(container, width, height, fps, tune="zerolatency")
        black = np.zeros((1, height, width, 3), np.uint8)
        for frame in (*video_frames(black, 0, stream), None):
            container.mux(stream.encode(frame))
    data, head, start = file.getvalue(), b"", 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 4], "big")
        if data[start + 4 : start + 8] in _HEAD:
            head += data[start : start + size]
        start += max(8, size)
    return head
