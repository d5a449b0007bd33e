"""The sections of a video: what each sees, what is decoded of it, and which frames it settles.

:class:`Inverted` makes the last section first, so that every one has the picture before it and what follows
it behind (anti-drifting); :class:`Forward` goes on from the picture (F1). Both are used alike, section by
section: :meth:`~Sections.conditions`, then :meth:`~Sections.window` with the latents that were made,
then :meth:`~Sections.settle` with the frames that the window was decoded to. Of a video under way only
what a later section needs is kept: so many latent frames as it sees, and the frames that it will blend over.

Sizes for sections of 9 latent frames: a window of 18, of which the half is of the section before, is 69
frames; neighbouring sections have 33 of them in common, and each adds 36. A video of n sections has 36 n + 1
frames: the picture's latent frame is one more. Indices, windows and blending are those of diffusers'
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

from slipway_serving.framepack_i2v.facts import Facts

Samples = NDArray[np.float32]
TIME = 2
"""Dimension of the frames, of latents and of pixels."""


@dataclass(frozen=True)
class Sizes:
    """Latent frames that a section has and sees.

    Attributes:
        section: its own.
        near: of history seen in full, next to the section.
        half: of history seen at half size, next to those.
        quarter: of history seen at a quarter.
        frames_per_latent: video frames of each latent frame but a video's first, which is one.
    """

    section: int
    near: int
    half: int
    quarter: int
    frames_per_latent: int

    @classmethod
    def of(cls, facts: Facts, section: int) -> Sizes:
        """Return those of a checkpoint."""
        seen = (facts.clean_frames - 1, facts.history_2x_frames, facts.history_4x_frames)
        return cls(section, *seen, facts.frames_per_latent)

    @property
    def history(self) -> int:
        """Latent frames of history in all."""
        return self.near + self.half + self.quarter

    @property
    def step(self) -> int:
        """Video frames from a section's begin to the next one's."""
        return self.section * self.frames_per_latent

    @property
    def blended(self) -> int:
        """Video frames that neighbouring sections have in common."""
        return self.step - self.frames_per_latent + 1

    def frames(self, sections: int) -> int:
        """Return how many video frames so many sections are."""
        return self.step * sections + 1


@dataclass(frozen=True)
class Run:
    """Neighbouring frames of a video.

    Attributes:
        frames: [1, 3, frames, height, width], float32, about [-1, 1].
        first_frame: place of the first of them in the video, from 0.
        final: whether no later section blends over them.
    """

    frames: Samples
    first_frame: int
    final: bool


class Sections(ABC):
    """A video between two of its sections.

    Args:
        picture: [1, channels, 1, height / 8, width / 8], latents of the first picture.
        count: sections of the video.
        sizes: of a section.

    Attributes:
        made: sections that are settled.
        history: [1, channels, as a section sees, height / 8, width / 8], in the order of time; zeros where
            there is nothing yet.
        edge: the frames that the next section blends over, as :class:`Run` has them; None before the first.
    """

    def __init__(self, picture: Samples, count: int, sizes: Sizes) -> None:
        self._picture, self.count, self.sizes = picture, count, sizes
        self.made = 0
        shape = list(picture.shape)
        shape[TIME] = sizes.history
        self.history: Samples = np.zeros(shape, np.float32)
        self.edge: Samples | None = None

    @property
    def is_last(self) -> bool:
        """Whether the section under way is the last one to be made."""
        return self.made == self.count - 1

    @abstractmethod
    def conditions(self) -> dict[str, NDArray[Any]]:
        """Return what the transformer is told of the next section's surroundings, by its inputs' names."""

    @abstractmethod
    def window(self, latents: Samples) -> Samples:
        """Take the latents of a section, [1, channels, section, ...]; return those to decode for it."""

    def settle(self, frames: Samples) -> list[Run]:
        """Take the frames of a section's window and end the section.

        Args:
            frames: [1, 3, frames, height, width].

        Returns:
            Its frames in the order of time, those that the section before left open among them, blended.
        """
        runs = self._settle(frames)
        self.made += 1
        return runs

    @abstractmethod
    def _settle(self, frames: Samples) -> list[Run]:
        """Do the work of :meth:`settle`."""

    def _told(self, places: Sequence[NDArray[np.int64]], seen: Sequence[Samples]) -> dict[str, NDArray[Any]]:
        """Name what a section is told: places and latents of its own, near, half and quarter frames."""
        own, near, half, quarter = places
        near_latents, half_latents, quarter_latents = seen
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
    """The last section first; see :class:`Sections`."""

    def conditions(self) -> dict[str, NDArray[Any]]:
        """Return what is told: the picture comes first, then a gap for sections to come, then the section."""
        sizes = self.sizes
        gap = paddings(self.count)[self.made] * sizes.section
        lengths = (sizes.section, sizes.near, sizes.half, sizes.quarter)
        return self._told(_places(1 + gap, lengths), _cut(self.history, lengths[1:]))

    def window(self, latents: Samples) -> Samples:
        """Take the latents of a section; return them and those of the one that follows it."""
        if self.is_last:
            latents = np.concatenate([self._picture, latents], axis=TIME)
        own = latents.shape[TIME]
        whole = np.concatenate([latents, self.history], axis=TIME)
        self.history = whole[:, :, : self.sizes.history].copy()
        return whole[:, :, : own + self.sizes.section] if self.made else latents

    def _settle(self, frames: Samples) -> list[Run]:
        sizes = self.sizes
        # A window that begins with a section begins with one frame for its first latent frame.
        first = sizes.frames(self.count) - sizes.step * (self.made + 1) + sizes.frames_per_latent - 1
        if self.edge is not None:
            frames = _faded(frames, self.edge)
        if self.is_last:
            self.edge = None
            return [Run(frames, 0, final=True)]
        self.edge = frames[:, :, : sizes.blended].copy()
        return _runs(frames, first, sizes.blended, opens=True)


class Forward(Sections):
    """The first section first; see :class:`Sections`."""

    def __init__(self, picture: Samples, count: int, sizes: Sizes) -> None:
        super().__init__(picture, count, sizes)
        self.history[:, :, -1:] = picture

    def conditions(self) -> dict[str, NDArray[Any]]:
        """Return what is told: the picture comes first, then history, its nearest last, then the section."""
        sizes = self.sizes
        lengths = (sizes.quarter, sizes.half, sizes.near, sizes.section)
        quarter, half, near, own = _places(1, lengths)
        quarter_seen, half_seen, near_seen = _cut(self.history, lengths[:-1])
        return self._told((own, near, half, quarter), (near_seen, half_seen, quarter_seen))

    def window(self, latents: Samples) -> Samples:
        """Take the latents of a section; return them behind those of the one before, or the picture's."""
        before = self.sizes.section if self.made else 1
        whole = np.concatenate([self.history, latents], axis=TIME)
        self.history = whole[:, :, -self.sizes.history :].copy()
        return whole[:, :, -(before + latents.shape[TIME]) :]

    def _settle(self, frames: Samples) -> list[Run]:
        sizes = self.sizes
        first = sizes.step * self.made + 1 - sizes.blended if self.made else 0
        if self.edge is not None:
            blended = _faded(self.edge, frames[:, :, : sizes.blended])
            frames = np.concatenate([blended, frames[:, :, sizes.blended :]], axis=TIME)
        if self.is_last:
            self.edge = None
            return [Run(frames, first, final=True)]
        self.edge = frames[:, :, -sizes.blended :].copy()
        return _runs(frames, first, frames.shape[TIME] - sizes.blended, opens=False)


def paddings(sections: int) -> list[int]:
    """Return how many sections a section in inverted order leaves room for before it, in the order of making.

    Of a long video the room is never more than 3: what is farther away was in no training.
    """
    if sections > 4:
        return [3, *[2] * (sections - 3), 1, 0]
    return list(reversed(range(sections)))


def _places(first: int, lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return neighbouring ranges of so many places, from the first one on."""
    bounds = accumulate(lengths, initial=first)
    return [np.arange(start, end, dtype=np.int64) for start, end in pairwise(bounds)]


def _cut(latents: Samples, lengths: Sequence[int]) -> list[Samples]:
    """Return neighbouring pieces of latents."""
    return [np.ascontiguousarray(latents[:, :, places]) for places in _places(0, lengths)]


def _faded(earlier: Samples, later: Samples) -> Samples:
    """Return frames whose last ones fade into the first ones of what follows them.

    Args:
        earlier: frames, of which the last as many as `later` has are of the same time.
        later: frames.
    """
    count = later.shape[TIME]
    weight = np.linspace(1, 0, count, dtype=np.float32)[:, None, None]
    faded = weight * earlier[:, :, -count:] + (1 - weight) * later
    return np.concatenate([earlier[:, :, :-count], faded], axis=TIME)


def _runs(frames: Samples, first: int, cut: int, *, opens: bool) -> list[Run]:
    """Cut frames into those that are open and those that are final; empty runs are left out.

    Args:
        frames: of a window.
        first: place of the first.
        cut: frames before the cut.
        opens: whether those before the cut are the open ones; else those after it.
    """
    runs = (Run(frames[:, :, :cut], first, not opens), Run(frames[:, :, cut:], first + cut, opens))
    return [run for run in runs if run.frames.shape[TIME]]
