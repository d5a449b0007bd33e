"""Clips of random scenes for training and for measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway_loadtests.pictures.render import render
from slipway_loadtests.pictures.scenes import ANY_WAY, Scene, Subject, Ways, random_scene

SIDE_PX, FRAMES = 64, 33


@dataclass(frozen=True)
class Footage:
    """Length and variety of a kind of clips.

    Args:
        frames: Number of frames of a clip, in which the motion covers its whole reach.
        ways: Ranges from which scenes are drawn.
    """

    frames: int
    ways: Ways = ANY_WAY

    def scene(self, random: np.random.Generator, choice: Sequence[Subject]) -> Scene:
        """Draw the scene of a clip."""
        return random_scene(random, choice, self.frames, self.ways)

    def cut(
        self, random: np.random.Generator, choice: Sequence[Subject], batch: int, frames: int, side: int
    ) -> NDArray[np.uint8]:
        """Draw pieces cut from clips of random scenes.

        Args:
            random: Generator of the scenes and of the time and place of the cuts.
            choice: Subjects to choose from.
            batch: Number of pieces.
            frames: Number of frames of each piece.
            side: Height and width of each piece, in pixels.

        Returns:
            Pieces, [batch, frames, side, side, 3].
        """
        cut = []
        for _ in range(batch):
            scene = self.scene(random, choice)
            first = int(random.integers(self.frames - frames + 1))
            clip = render(scene, range(first, first + frames), SIDE_PX)
            top, left = random.integers(SIDE_PX - side + 1, size=2)
            cut.append(clip[:, top : top + side, left : left + side])
        return np.stack(cut)


SHORT = Footage(FRAMES)
