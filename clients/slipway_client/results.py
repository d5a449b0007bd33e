"""From a stream's events to whole results: what each type of event makes once the stream has ended.

Progress and whatever else needs no others is handed on as it comes. Parts of frames and of an encoded video
are put together, in whatever order they came, and the result is there only when every part has arrived: a
stream that ended early is an error, never a shorter video.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.errors import Malformed
from slipway_serving.events import Event, FramesPart, Progress, VideoPart
from slipway_serving.requests import Request


@dataclass(frozen=True)
class Video:
    """The result as a file.

    Attributes:
        data: a whole MP4 file (H.264).
        elapsed_s: what the server took, seconds.
        cache_hit_rate: share of the denoiser's evaluations that reused the first-block cache, 0 to 1; None
            without a cache.
    """

    data: bytes
    elapsed_s: float
    cache_hit_rate: float | None = None


@dataclass(frozen=True)
class Frames:
    """The result as pixels.

    Attributes:
        array: [frames, height, width, 3], uint8, RGB.
        elapsed_s: what the server took, seconds.
        cache_hit_rate: as in :class:`Video`.
    """

    array: NDArray[np.uint8]
    elapsed_s: float
    cache_hit_rate: float | None = None


Result = Video | Frames


class Assembler:
    """Collects the events of one request.

    Args:
        request: what was asked for; tells the form and the shape of the result.
        model: that was asked, for messages.
    """

    def __init__(self, request: Request, model: str) -> None:
        self._request, self._model = request, model
        self._frames: list[FramesPart] = []
        self._video: list[VideoPart] = []
        self._chunks: set[int] = set()
        self._expected: int | None = None
        self._answered = False

    def add(self, event: Event) -> Event | None:
        """Take an event.

        Returns:
            The event, or None for a part of a result to come.

        Raises:
            Malformed: it contradicts an earlier one.
        """
        if isinstance(event, FramesPart | VideoPart):
            self._count(event)
            (self._frames if isinstance(event, FramesPart) else self._video).append(event)  # type: ignore[arg-type]
            return None
        self._answered = self._answered or not isinstance(event, Progress)
        return event

    def results(self) -> list[Result]:
        """Put the parts together, after the stream's end.

        Raises:
            Malformed: there is no result, parts are missing, or they are not what was asked for.
        """
        if not (self._frames or self._video or self._answered):
            raise self._broken("stream must end with a result, got none")
        # The number of chunks is a claim of the server's: what is missing is looked for lazily.
        missing = (index for index in range(self._expected or 0) if index not in self._chunks)
        if first := list(islice(missing, 8)):
            raise self._broken(
                f"result must have {self._expected} chunks, got {len(self._chunks)}, "
                f"without {', '.join(map(str, first))}"
            )
        made: list[Result] = []
        if self._video:
            parts = self._in_order()
            form = str(getattr(self._request, "output", ""))
            data = b"".join(part.data(form) for part in parts)
            made.append(Video(data, self._video[-1].elapsed_s, self._video[-1].cache_hit_rate))
        if self._frames:
            last = self._frames[-1]
            made.append(Frames(self._joined(), last.elapsed_s, last.cache_hit_rate))
        return made

    def _count(self, part: FramesPart | VideoPart) -> None:
        """Check a part's place among its fellows, where parts are counted."""
        if part.chunk is None:
            return
        self._expected = part.chunks if self._expected is None else self._expected
        beyond = part.chunks is not None and part.chunk >= part.chunks
        other = bool(self._video) != isinstance(part, VideoPart) and bool(self._chunks)
        if part.chunks != self._expected or part.chunk < 0 or beyond or part.chunk in self._chunks or other:
            raise self._broken(
                f"chunk must be a new one of {self._expected}, got {part.chunk} of {part.chunks}"
            )
        self._chunks.add(part.chunk)

    def _in_order(self) -> list[VideoPart]:
        """Return the parts of a file in its order: that of their frames where they are fragments of it."""
        if any(part.first_frame is None for part in self._video):
            return sorted(self._video, key=lambda part: part.chunk)
        parts = sorted(self._video, key=lambda part: part.first_frame or 0)
        ends = [(part.first_frame or 0) + (part.part_frames or 0) for part in parts]
        if [0, *ends] != [*(part.first_frame for part in parts), parts[0].frames_total]:
            runs = [f"{part.first_frame} to {end - 1}" for part, end in zip(parts, ends, strict=True)]
            raise self._broken(
                f"video must have each of its {parts[0].frames_total} frames once, got {', '.join(runs[:8])}"
            )
        return parts

    def _joined(self) -> NDArray[np.uint8]:
        asked = self._request.result_shape()
        array = join_frames(self._frames, self._model)
        if asked is not None and array.shape != asked:
            raise self._broken(f"frames must be {list(asked)} together, got {list(array.shape)}")
        return array

    def _broken(self, text: str) -> Malformed:
        return Malformed(f"{self._model}: {text}; try again, and see the server's log")


def join_frames(parts: list[FramesPart], where: str) -> NDArray[np.uint8]:
    """Put frames in the order of time, whatever the order in which they came.

    Args:
        parts: in the order in which they came: of two with the same frame the later holds.
        where: the model, for messages.

    Returns:
        [frames, height, width, 3], uint8.

    Raises:
        Malformed: sizes differ, or a frame is missing or not final.
    """
    arrays = [part.pixels for part in parts]
    sizes = {array.shape[1:] for array in arrays}
    ends = [part.first_frame + len(array) for part, array in zip(parts, arrays, strict=True)]
    told: set[Any] = {part.frames_total for part in parts if part.frames_total is not None}
    total = max(told or set(ends), default=0)
    if len(sizes) != 1 or len(told) > 1 or max(ends) > total or min(p.first_frame for p in parts) < 0:
        shapes = [list(array.shape) for array in arrays[:8]]
        raise Malformed(f"{where}: frames must be of one video of {total}, got parts {shapes}")
    # The total is a claim of the server's: nothing of that size is made unless so many frames came.
    came = _without_gap((part.first_frame, end) for part, end in zip(parts, ends, strict=True))
    if came < total:
        raise Malformed(f"{where}: frames must all come and be final, got none for {came} of {total}")
    whole = np.zeros((total, *sizes.pop()), np.uint8)
    final = np.zeros(total, np.bool_)
    for part, array, end in zip(parts, arrays, ends, strict=True):
        whole[part.first_frame : end] = array
        final[part.first_frame : end] = part.final
    if not final.all():
        raise Malformed(
            f"{where}: frames must all come and be final, got none for {int(np.argmin(final))} of {total}"
        )
    return whole


def _without_gap(spans: Iterable[tuple[int, int]]) -> int:
    """Return how many frames from the first on are there.

    Args:
        spans: First frame of each part, and the frame after its last.
    """
    end = 0
    for first, after in sorted(spans):
        if first > end:
            break
        end = max(end, after)
    return end
