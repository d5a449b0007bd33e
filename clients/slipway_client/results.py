"""Assembly of a stream's events into whole results.

Events that are complete by themselves, such as progress, are passed on as they arrive. Parts of frames and of
an encoded video are joined, in whatever order they arrive, and a result is returned only when every part has
arrived: a stream that ends early raises an error and never gives a shorter video. Parts of a draft are joined
apart from those of the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.diffusion.stopping import Continued
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
        steps_repeated: Number of steps that were done twice because a server failed after its last state.
        moves: Number of times that the client continued the request after a server stopped or failed.
        same_engine: False if the video was continued by another engine than the one that began it.
        draft_step: Number of steps after which the video was predicted, if it is a draft; else None.
    """

    data: bytes
    elapsed_s: float
    cache_hit_rate: float | None = None
    steps_repeated: int = 0
    moves: int = 0
    same_engine: bool = True
    draft_step: int | None = None


@dataclass(frozen=True)
class Frames:
    """Result as pixels.

    Attributes:
        array: Pixels, [frames, height, width, 3], uint8, RGB.
        elapsed_s: Time that the server took, in seconds.
        cache_hit_rate: Share of evaluations that reused the cache, as in :class:`Video`.
        steps_repeated: Number of steps that were done twice, as in :class:`Video`.
        moves: Number of times that the client continued the request, as in :class:`Video`.
        same_engine: False if another engine continued the video, as in :class:`Video`.
        draft_step: Number of steps after which the frames were predicted, if they are a draft; else None.
    """

    array: NDArray[np.uint8]
    elapsed_s: float
    cache_hit_rate: float | None = None
    steps_repeated: int = 0
    moves: int = 0
    same_engine: bool = True
    draft_step: int | None = None


@dataclass(frozen=True)
class Checkpoint:
    """State of a video that goes on, sent because the request has `checkpoint_every_steps`.

    Attributes:
        state: State from which the video can be continued: the content of a state file. It includes the parts
            of the result that were delivered before.
        step: Number of finished steps, of all sections.
    """

    state: bytes
    step: int


@dataclass(frozen=True)
class Moved:
    """Notice that the client continued the request after a server stopped or failed.

    Attributes:
        from_url: Address of the server that stopped or failed.
        to_url: Address of the server that works on the request now; it may be the same one.
        step: Number of finished steps from which it continues; 0 begins again.
        reason: "shutdown" if the server stopped the video because it shuts down, "unavailable" if it failed
            or the connection to it was lost.
    """

    from_url: str
    to_url: str
    step: int
    reason: str


Result = Video | Frames
Notice = Checkpoint | Moved
"""What a client tells about a request besides the server's events and the result."""
Mark = tuple[tuple[int, int], tuple[int, int]]
"""Position behind parts that have arrived, of the result and of a draft."""
# Events of a stream that must bring a result besides.
_NO_RESULT = (Progress, Continued)


class Assembler:
    """Assembler of the events of one request.

    Args:
        request: Request; it determines the form and the shape of the result.
        model: Name of the called model, for messages.
    """

    def __init__(self, request: Request, model: str) -> None:
        self._request, self._model = request, model
        self._result, self._draft = _Parts(model), _Parts(model)
        self._draft_step: int | None = None
        self._has_result = False

    def add(self, event: Event) -> Event | None:
        """Add an event.

        Returns:
            The event, or None if it is a part of a result or of a draft.

        Raises:
            Malformed: The event contradicts an earlier one.
        """
        if isinstance(event, FramesPart | VideoPart):
            self._parts_of(event).add(self._decoded(event))
            return None
        self._has_result = self._has_result or not isinstance(event, _NO_RESULT)
        return event

    def restore(self, delivered: Iterable[FramesPart | VideoPart]) -> None:
        """Add parts of the result that were delivered before, without base64 text.

        Raises:
            Malformed: The parts contradict each other.
        """
        for part in delivered:
            self._result.add(part)

    def delivered(self) -> list[FramesPart | VideoPart]:
        """Return the parts of the result that have arrived, without base64 text and without a draft."""
        return self._result.parts

    def mark(self) -> Mark:
        """Return the position behind the parts that have arrived, for :meth:`rewind`."""
        return self._result.mark(), self._draft.mark()

    def rewind(self, mark: Mark) -> None:
        """Drop the parts that arrived after a mark, since a request that is continued sends them again."""
        self._result.rewind(mark[0])
        self._draft.rewind(mark[1])

    def results(self) -> list[Result]:
        """Join the parts after the end of the stream.

        Raises:
            Malformed: There is no result, parts are missing, or they do not fit the request.
        """
        drafts = self.drafts()
        if self._result.is_empty and not self._has_result:
            raise malformed(self._model, "stream must contain a result, got none before its end")
        results = self._result.join()
        for result in results:
            self._check_shape(result)
        return [*drafts, *results]

    def drafts(self) -> list[Result]:
        """Join the parts of a draft; without one, the list is empty.

        Raises:
            Malformed: Parts of the draft are missing or contradict each other.
        """
        return [replace(draft, draft_step=self._draft_step) for draft in self._draft.join()]

    def _decoded(self, part: FramesPart | VideoPart) -> FramesPart | VideoPart:
        """Return a part without base64 text."""
        if isinstance(part, VideoPart):
            return replace(part, video=part.data(str(getattr(self._request, "output", ""))))
        return replace(part, frames=part.pixels, frames_base64=None)

    def _parts_of(self, part: FramesPart | VideoPart) -> _Parts:
        if part.draft_step is None:
            return self._result
        if self._draft.is_empty:
            self._draft_step = part.draft_step
        if part.draft_step != self._draft_step:
            raise malformed(
                self._model, f"draft_step must be {self._draft_step} in each part, got {part.draft_step}"
            )
        return self._draft

    def _check_shape(self, result: Result) -> None:
        expected = self._request.result_shape()
        if isinstance(result, Frames) and expected is not None and result.array.shape != expected:
            raise malformed(
                self._model,
                f"frames must have the shape {list(expected)} together, got {list(result.array.shape)}",
            )


class _Parts:
    """Parts of one result without base64 text, in the order of their arrival.

    Args:
        model: Name of the called model, for messages.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._frames: list[FramesPart] = []
        self._video: list[VideoPart] = []
        self._chunks: set[int] = set()
        self._expected: int | None = None

    @property
    def is_empty(self) -> bool:
        """True if no part has arrived."""
        return not (self._frames or self._video)

    @property
    def parts(self) -> list[FramesPart | VideoPart]:
        """All parts, frames before parts of a file."""
        return [*self._frames, *self._video]

    def add(self, part: FramesPart | VideoPart) -> None:
        """Add a part.

        Raises:
            Malformed: Its number contradicts an earlier part.
        """
        self._check_number(part)
        if isinstance(part, FramesPart):
            self._frames.append(part)
        else:
            self._video.append(part)

    def mark(self) -> tuple[int, int]:
        """Return the number of parts of each kind."""
        return len(self._frames), len(self._video)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Drop the parts that arrived after a mark."""
        del self._frames[mark[0] :], self._video[mark[1] :]
        self._chunks = {part.chunk for part in self.parts if part.chunk is not None}
        self._expected = next((part.chunks for part in self.parts if part.chunk is not None), None)

    def join(self) -> list[Result]:
        """Join the parts to a file or to an array.

        Raises:
            Malformed: Parts are missing, or do not fit together.
        """
        # The server claims the number of chunks, perhaps a huge one, so missing chunks are searched lazily.
        missing = (index for index in range(self._expected or 0) if index not in self._chunks)
        if first := list(islice(missing, 8)):
            raise malformed(
                self._model,
                f"result must have {self._expected} chunks, got {len(self._chunks)}, "
                f"without {', '.join(map(str, first))}",
            )
        results: list[Result] = []
        if self._video:
            data = b"".join(part.video for part in self._ordered_parts())
            results.append(Video(data, self._video[-1].elapsed_s, self._video[-1].cache_hit_rate))
        if self._frames:
            last = self._frames[-1]
            array = join_frames(self._frames, self._model)
            results.append(Frames(array, last.elapsed_s, last.cache_hit_rate))
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
            raise malformed(
                self._model,
                f"chunk must be a new one of {self._expected} chunks, got {part.chunk} of {part.chunks}",
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
            raise malformed(
                self._model,
                f"video must have each of its {parts[0].frames_total} frames once, got frames"
                f" {', '.join(ranges[:8])}",
            )
        return parts


def malformed(model: str, text: str) -> Malformed:
    """Return the error for a stream that contradicts itself.

    Args:
        model: Name of the called model.
        text: Rule that the stream breaks, and what came.
    """
    return Malformed(f"{model}: {text}; try again, and see the server's log")


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
