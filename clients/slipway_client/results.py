"""Assembly of a stream's events into whole results.

Events that are complete by themselves, such as progress, are passed on as they arrive. Parts of frames and of
an encoded video are joined, in whatever order they arrive, and a result is returned only when every part has
arrived: a stream that ends early raises an error and never gives a shorter video.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import Malformed
from slipway_serving.protocol.events import Event, FramesPart, Progress, VideoPart
from slipway_serving.protocol.requests import Request


@dataclass(frozen=True)
class Video:
    """Result as a video file.

    Attributes:
        data: Content of a whole MP4 file (H.264).
        elapsed_s: Time that the server took, in seconds.
        cache_hit_rate: Share of the denoiser's evaluations that reused the first-block cache, 0 to 1; None
            without a cache.
    """

    data: bytes
    elapsed_s: float
    cache_hit_rate: float | None = None


@dataclass(frozen=True)
class Frames:
    """Result as pixels.

    Attributes:
        array: Pixels, [frames, height, width, 3], uint8, RGB.
        elapsed_s: Time that the server took, in seconds.
        cache_hit_rate: Share of evaluations that reused the cache, as in :class:`Video`.
    """

    array: NDArray[np.uint8]
    elapsed_s: float
    cache_hit_rate: float | None = None


Result = Video | Frames


class Assembler:
    """Assembler of the events of one request.

    Args:
        request: Request; it determines the form and the shape of the result.
        model: Name of the called model, for messages.
    """

    def __init__(self, request: Request, model: str) -> None:
        self._request, self._model = request, model
        self._frames: list[FramesPart] = []
        self._video: list[VideoPart] = []
        self._chunks: set[int] = set()
        self._expected: int | None = None
        self._has_result = False

    def add(self, event: Event) -> Event | None:
        """Add an event.

        Returns:
            The event, or None if it is a part of a result.

        Raises:
            Malformed: The event contradicts an earlier one.
        """
        if isinstance(event, FramesPart | VideoPart):
            self._check_number(event)
            (self._frames if isinstance(event, FramesPart) else self._video).append(event)  # type: ignore[arg-type]
            return None
        self._has_result = self._has_result or not isinstance(event, Progress)
        return event

    def results(self) -> list[Result]:
        """Join the parts after the end of the stream.

        Raises:
            Malformed: There is no result, parts are missing, or they do not fit the request.
        """
        if not (self._frames or self._video or self._has_result):
            raise self._error("stream must contain a result, got none before its end")
        # The server claims the number of chunks, perhaps a huge one, so missing chunks are searched lazily.
        missing = (index for index in range(self._expected or 0) if index not in self._chunks)
        if first := list(islice(missing, 8)):
            raise self._error(
                f"result must have {self._expected} chunks, got {len(self._chunks)}, "
                f"without {', '.join(map(str, first))}"
            )
        results: list[Result] = []
        if self._video:
            parts = self._ordered_parts()
            form = str(getattr(self._request, "output", ""))
            data = b"".join(part.data(form) for part in parts)
            results.append(Video(data, self._video[-1].elapsed_s, self._video[-1].cache_hit_rate))
        if self._frames:
            last = self._frames[-1]
            results.append(Frames(self._join_frames(), last.elapsed_s, last.cache_hit_rate))
        return results

    def _check_number(self, part: FramesPart | VideoPart) -> None:
        """Check the number of a part, if its parts are numbered."""
        if part.chunk is None:
            return
        self._expected = part.chunks if self._expected is None else self._expected
        is_beyond = part.chunks is not None and part.chunk >= part.chunks
        is_other_kind = bool(self._video) != isinstance(part, VideoPart) and bool(self._chunks)
        if (
            part.chunks != self._expected
            or part.chunk < 0
            or is_beyond
            or part.chunk in self._chunks
            or is_other_kind
        ):
            raise self._error(
                f"chunk must be a new one of {self._expected} chunks, got {part.chunk} of {part.chunks}"
            )
        self._chunks.add(part.chunk)

    def _ordered_parts(self) -> list[VideoPart]:
        """Return the parts of a file in order; fragments are ordered by their frames."""
        if any(part.first_frame is None for part in self._video):
            return sorted(self._video, key=lambda part: part.chunk)
        parts = sorted(self._video, key=lambda part: part.first_frame or 0)
        ends = [(part.first_frame or 0) + (part.part_frames or 0) for part in parts]
        if [0, *ends] != [*(part.first_frame for part in parts), parts[0].frames_total]:
            ranges = [f"{part.first_frame} to {end - 1}" for part, end in zip(parts, ends, strict=True)]
            raise self._error(
                f"video must have each of its {parts[0].frames_total} frames once, got frames"
                f" {', '.join(ranges[:8])}"
            )
        return parts

    def _join_frames(self) -> NDArray[np.uint8]:
        expected = self._request.result_shape()
        array = join_frames(self._frames, self._model)
        if expected is not None and array.shape != expected:
            raise self._error(
                f"frames must have the shape {list(expected)} together, got {list(array.shape)}"
            )
        return array

    def _error(self, text: str) -> Malformed:
        return Malformed(f"{self._model}: {text}; try again, and see the server's log")


def join_frames(parts: list[FramesPart], where: str) -> NDArray[np.uint8]:
    """Join parts of frames in order of time, whatever the order in which they arrived.

    Args:
        parts: Parts in the order of arrival; of two parts with the same frame the later one counts.
        where: Name of the model, for messages.

    Returns:
        Frames, [frames, height, width, 3], uint8.

    Raises:
        Malformed: The sizes differ, or a frame is missing or not final.
    """
    arrays = [part.pixels for part in parts]
    sizes = {array.shape[1:] for array in arrays}
    ends = [part.first_frame + len(array) for part, array in zip(parts, arrays, strict=True)]
    totals: set[Any] = {part.frames_total for part in parts if part.frames_total is not None}
    total = max(totals or set(ends), default=0)
    if len(sizes) != 1 or len(totals) > 1 or max(ends) > total or min(p.first_frame for p in parts) < 0:
        shapes = [list(array.shape) for array in arrays[:8]]
        raise Malformed(
            f"{where}: parts must belong to one video of {total} frames, got parts of shapes {shapes}"
        )
    # The server claims the total, so no array of that size is allocated before that many frames arrived.
    contiguous = _frames_before_gap((part.first_frame, end) for part, end in zip(parts, ends, strict=True))
    if contiguous < total:
        raise Malformed(
            f"{where}: all frames must arrive and be final, got no final frame {contiguous} of {total}"
        )
    frames = np.zeros((total, *sizes.pop()), np.uint8)
    final = np.zeros(total, np.bool_)
    for part, array, end in zip(parts, arrays, ends, strict=True):
        frames[part.first_frame : end] = array
        final[part.first_frame : end] = part.final
    if not final.all():
        raise Malformed(
            f"{where}: all frames must arrive and be final, got no final frame {int(np.argmin(final))} of"
            f" {total}"
        )
    return frames


def _frames_before_gap(spans: Iterable[tuple[int, int]]) -> int:
    """Return the number of frames from the first one up to the first gap.

    Args:
        spans: First frame of each part, and the frame after its last.
    """
    end = 0
    for first, after in sorted(spans):
        if first > end:
            break
        end = max(end, after)
    return end
