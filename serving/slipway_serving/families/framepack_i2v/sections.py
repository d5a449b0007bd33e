"""Sections of a video: the history that each one sees, the window to decode, and the frames that are final.

:class:`Inverted` generates the last section first, so that every section sees the picture before it and the
frames that follow it (anti-drifting); :class:`Forward` continues from the picture (F1). Both are used in the
same way for each section: :meth:`~Sections.conditions`, then :meth:`~Sections.window` with the denoised
latents, then :meth:`~Sections.finish_section` with the decoded frames of the window. Only what later sections
need is kept: the latent frames that the next one sees, and the frames that it will blend over.

Sizes for sections of 9 latent frames: a window of 18, half of which belongs to the section before, is 69
frames; neighbouring sections have 33 of them in common, and each adds 36. A video of n sections has 36 n + 1
frames, because the picture's latent frame adds one. Indices, windows and blending are those of diffusers'
HunyuanVideoFramepackPipeline.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.framepack_i2v.facts import Facts

Samples = NDArray[np.float32]
TIME = 2
"""Dimension of the frames in arrays of latents and of pixels."""


@dataclass(frozen=True)
class Sizes:
    """Numbers of latent frames that a section has and sees.

    Attributes:
        section: Latent frames of the section itself.
        near: Latent frames of history seen in full, next to the section.
        half: Latent frames of history seen at half size, next to the near ones.
        quarter: Latent frames of history seen at a quarter.
        frames_per_latent: Video frames for each latent frame, except a video's first, which gives one.
    """

    section: int
    near: int
    half: int
    quarter: int
    frames_per_latent: int

    @classmethod
    def of(cls, facts: Facts, section: int) -> Sizes:
        """Return the sizes of a checkpoint."""
        history_parts = (facts.clean_frames - 1, facts.history_2x_frames, facts.history_4x_frames)
        return cls(section, *history_parts, facts.frames_per_latent)

    @property
    def history(self) -> int:
        """Return the number of all latent frames of history."""
        return self.near + self.half + self.quarter

    @property
    def step(self) -> int:
        """Return the video frames between the beginnings of neighbouring sections."""
        return self.section * self.frames_per_latent

    @property
    def blended(self) -> int:
        """Return the video frames that neighbouring sections have in common."""
        return self.step - self.frames_per_latent + 1

    def frames(self, sections: int) -> int:
        """Return the number of video frames of that many sections."""
        return self.step * sections + 1


@dataclass(frozen=True)
class FrameRun:
    """Consecutive frames of a video.

    Attributes:
        frames: Frames, [1, 3, frames, height, width], float32, about [-1, 1].
        first_frame: Place of the first of them in the video, from 0.
        final: True if no later section blends over them.
    """

    frames: Samples
    first_frame: int
    final: bool


class Sections(ABC):
    """State of a video between two of its sections.

    Args:
        picture: Latents of the first picture, [1, channels, 1, height / 8, width / 8].
        count: Number of sections of the video.
        sizes: Sizes of a section.

    Attributes:
        finished: Number of finished sections.
        history: Latents that a section sees, [1, channels, history frames, height / 8, width / 8], in order
            of time; zeros where there is nothing yet.
        overlap: Frames that the next section blends over, in the form of :class:`FrameRun`; None before the
            first.
    """

    def __init__(self, picture: Samples, count: int, sizes: Sizes) -> None:
        self._picture, self.count, self.sizes = picture, count, sizes
        self.finished = 0
        shape = list(picture.shape)
        shape[TIME] = sizes.history
        self.history: Samples = np.zeros(shape, np.float32)
        self.overlap: Samples | None = None

    @property
    def is_last(self) -> bool:
        """Return True if the current section is the last one to be generated."""
        return self.finished == self.count - 1

    @abstractmethod
    def conditions(self) -> dict[str, NDArray[Any]]:
        """Return the transformer's inputs about the next section's surroundings, by name."""

    @abstractmethod
    def window(self, latents: Samples) -> Samples:
        """Add the latents of a section, [1, channels, section, ...], and return the window to decode."""

    def finish_section(self, frames: Samples) -> list[FrameRun]:
        """Add the decoded frames of a section's window and end the section.

        Args:
            frames: Frames of the window, [1, 3, frames, height, width].

        Returns:
            The frames in order of time, blended with those that the section before left open.
        """
        runs = self._finish_section(frames)
        self.finished += 1
        return runs

    @abstractmethod
    def _finish_section(self, frames: Samples) -> list[FrameRun]:
        """Blend the frames and split them into runs; called by :meth:`finish_section`."""

    def _transformer_inputs(
        self, indices: Sequence[NDArray[np.int64]], history_parts: Sequence[Samples]
    ) -> dict[str, NDArray[Any]]:
        """Return the transformer's inputs for places and latents of own, near, half and quarter frames."""
        own, near, half, quarter = indices
        near_latents, half_latents, quarter_latents = history_parts
        return {
            "indices_latents": own,
            "latents_clean": np.concatenate([self._picture, near_latents], axis=TIME),
            "indices_latents_clean": np.concatenate([np.zeros(1, np.int64), near]),
            "latents_history_2x": half_latents,
            "indices_latents_history_2x": half,
            "latents_history_4x": quarter_latents,
            "indices_latents_history_4x": quarter,
        }


class Inverted(Sections):
    """Sections that are generated from the last to the first; see :class:`Sections`."""

    def conditions(self) -> dict[str, NDArray[Any]]:
        """Return the inputs in order of time: the picture, a gap for later sections, the section, history."""
        sizes = self.sizes
        gap = section_gaps(self.count)[self.finished] * sizes.section
        lengths = (sizes.section, sizes.near, sizes.half, sizes.quarter)
        return self._transformer_inputs(_index_ranges(1 + gap, lengths), _split(self.history, lengths[1:]))

    def window(self, latents: Samples) -> Samples:
        """Add the latents of a section and return them with those of the section that follows in time."""
        if self.is_last:
            latents = np.concatenate([self._picture, latents], axis=TIME)
        own = latents.shape[TIME]
        joined = np.concatenate([latents, self.history], axis=TIME)
        self.history = joined[:, :, : self.sizes.history].copy()
        return joined[:, :, : own + self.sizes.section] if self.finished else latents

    def _finish_section(self, frames: Samples) -> list[FrameRun]:
        """Blend the frames with those of the section after them in time, and keep the first ones open."""
        sizes = self.sizes
        # The first latent frame of a window decodes to one frame.
        first = sizes.frames(self.count) - sizes.step * (self.finished + 1) + sizes.frames_per_latent - 1
        if self.overlap is not None:
            frames = _blend(frames, self.overlap)
        if self.is_last:
            self.overlap = None
            return [FrameRun(frames, 0, final=True)]
        self.overlap = frames[:, :, : sizes.blended].copy()
        return _split_runs(frames, first, sizes.blended, open_first=True)


class Forward(Sections):
    """Sections that are generated from the first to the last; see :class:`Sections`."""

    def __init__(self, picture: Samples, count: int, sizes: Sizes) -> None:
        super().__init__(picture, count, sizes)
        self.history[:, :, -1:] = picture

    def conditions(self) -> dict[str, NDArray[Any]]:
        """Return the inputs in order of time: the picture, history with the nearest last, the section."""
        sizes = self.sizes
        lengths = (sizes.quarter, sizes.half, sizes.near, sizes.section)
        quarter, half, near, own = _index_ranges(1, lengths)
        quarter_seen, half_seen, near_seen = _split(self.history, lengths[:-1])
        return self._transformer_inputs((own, near, half, quarter), (near_seen, half_seen, quarter_seen))

    def window(self, latents: Samples) -> Samples:
        """Add the latents of a section and return them after those of the section or picture before."""
        before = self.sizes.section if self.finished else 1
        joined = np.concatenate([self.history, latents], axis=TIME)
        self.history = joined[:, :, -self.sizes.history :].copy()
        return joined[:, :, -(before + latents.shape[TIME]) :]

    def _finish_section(self, frames: Samples) -> list[FrameRun]:
        """Blend the frames with those of the section before them, and keep the last ones open."""
        sizes = self.sizes
        first = sizes.step * self.finished + 1 - sizes.blended if self.finished else 0
        if self.overlap is not None:
            blended = _blend(self.overlap, frames[:, :, : sizes.blended])
            frames = np.concatenate([blended, frames[:, :, sizes.blended :]], axis=TIME)
        if self.is_last:
            self.overlap = None
            return [FrameRun(frames, first, final=True)]
        self.overlap = frames[:, :, -sizes.blended :].copy()
        return _split_runs(frames, first, frames.shape[TIME] - sizes.blended, open_first=False)


def section_gaps(sections: int) -> list[int]:
    """Return the gap before each section in inverted order, in sections, in the order of generation.

    The gap is at most 3 even for a long video, because training had no larger ones.
    """
    if sections > 4:
        return [3, *[2] * (sections - 3), 1, 0]
    return list(reversed(range(sections)))


def _index_ranges(first: int, lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return consecutive ranges of places with the given lengths, starting at `first`."""
    bounds = accumulate(lengths, initial=first)
    return [np.arange(start, end, dtype=np.int64) for start, end in pairwise(bounds)]


def _split(latents: Samples, lengths: Sequence[int]) -> list[Samples]:
    """Return consecutive pieces of latents with the given lengths."""
    return [np.ascontiguousarray(latents[:, :, indices]) for indices in _index_ranges(0, lengths)]


def _blend(earlier: Samples, later: Samples) -> Samples:
    """Blend the last frames of `earlier` into `later` with linear weights.

    Args:
        earlier: Frames; the last of them, as many as `later` has, are at the same time as `later`.
        later: Frames to blend into.
    """
    count = later.shape[TIME]
    weight = np.linspace(1, 0, count, dtype=np.float32)[:, None, None]
    blended = weight * earlier[:, :, -count:] + (1 - weight) * later
    return np.concatenate([earlier[:, :, :-count], blended], axis=TIME)


def _split_runs(frames: Samples, first: int, cut: int, *, open_first: bool) -> list[FrameRun]:
    """Split frames into an open and a final run; empty runs are left out.

    Args:
        frames: Frames of a window.
        first: Place of the first frame.
        cut: Number of frames before the split.
        open_first: True if the frames before the split are open; False if those after it are.
    """
    runs = (
        FrameRun(frames[:, :, :cut], first, not open_first),
        FrameRun(frames[:, :, cut:], first + cut, open_first),
    )
    return [run for run in runs if run.frames.shape[TIME]]
