"""Clips of random scenes, as training and measuring take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway_training.shapes.render import render
from slipway_training.shapes.scenes import ANY_WAY, Scene, Subject, Ways, random_scene

SIDE_PX, FRAMES = 64, 33


@dataclass(frozen=True)
class Footage:
    """Clips of one kind.

    Args:
        frames: of a clip; its motion goes through its whole reach in them.
        ways: between what scenes are drawn.
    """

    frames: int
    ways: Ways = ANY_WAY

    def scene(self, random: np.random.Generator, choice: Sequence[Subject]) -> Scene:
        """Draw a scene of a clip."""
        return random_scene(random, choice, self.frames, self.ways)

    def cut(
        self, random: np.random.Generator, choice: Sequence[Subject], batch: int, frames: int, side: int
    ) -> NDArray[np.uint8]:
        """Draw pieces of clips.

        Args:
            random: decides what they show, and when and where they are cut.
            choice: the subjects to choose from.
            batch: pieces.
            frames: of each.
            side: of each, pixels.

        Returns:
            [batch, frames, side, side, 3].
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
# What a VAE's step sees: clips, frames, side. Of clips, every fourth is a longer piece of the whole picture.
_PICTURES = (32, 1, 32)
_PIECES = (6, 9, 32)
_WHOLE, _WHOLE_EVERY = (1, 17, SIDE_PX), 4


def pictures(random: np.random.Generator, choice: Sequence[Subject]) -> NDArray[np.uint8]:
    """Draw pieces of pictures for a VAE's step, [pieces, 1 frame, side, side, 3]."""
    return SHORT.cut(random, choice, *_PICTURES)


def pieces(random: np.random.Generator, step: int, choice: Sequence[Subject]) -> NDArray[np.uint8]:
    """Draw pieces of clips for a VAE's step.

    Args:
        random: decides what they show, and when and where they are cut.
        step: its number decides their size.
        choice: the subjects to choose from.

    Returns:
        [pieces, 4k + 1 frames, side, side, 3].
    """
    return SHORT.cut(random, choice, *(_PIECES if step % _WHOLE_EVERY else _WHOLE))
