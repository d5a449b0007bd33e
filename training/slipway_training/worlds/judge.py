"""Reads from frames whether a world did what its keys said: how far the view slid, and who is in the middle.

Nothing of it is trained: slides are found by laying two frames over each other, poses by drawing each of them
over the frame. It is judged on renders, before and after a VAE, before it judges a world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_training.worlds.plays import (
    BLOCK_LATENTS,
    CELL_PX,
    FRAMES_PER_LATENT,
    SPRITE_PX,
    WORLDS,
    Cells,
    Step,
    drawn_on,
)

Frames = NDArray[np.uint8]
# Of a latent frame; a world slides by a cell at most.
_REACH_PX, _GRAIN_PX = 16, 4
# A block slid as it was told when it is off by less, in all of it.
_OFF_PX = CELL_PX // 2
# What a pixel costs that is drawn in the colour of who is in the middle where the pose has none.
_STRAY, _NEAR = 120.0, 70.0


@dataclass(frozen=True)
class Verdict:
    """What a block was seen to do.

    Args:
        slide: of the view over the block, in pixels, down and to the right.
        told: what its keys say, in pixels.
        pose: in its last frame.
        told_pose: what its keys say.
    """

    slide: Cells
    told: Cells
    pose: str
    told_pose: str

    @property
    def obeyed(self) -> bool:
        """Whether view and pose are as the keys say."""
        near = all(abs(seen - told) < _OFF_PX for seen, told in zip(self.slide, self.told, strict=True))
        return near and self.pose == self.told_pose


def verdicts(frames: Frames, mode: str, steps: Sequence[Step]) -> list[Verdict]:
    """Judge each block of a play.

    Args:
        frames: [1 + 4 * steps, height, width, 3], RGB.
        mode: a key of `WORLDS`.
        steps: what its rows of actions say, of each latent frame after the first.
    """
    shown = frames[::FRAMES_PER_LATENT]
    slides = np.array([slide_px(before, after) for before, after in pairwise(shown)])
    found = []
    # Of the first block the first latent frame is the picture.
    for first in range(0, len(steps) + 1, BLOCK_LATENTS):
        block = slice(max(0, first - 1), first - 1 + BLOCK_LATENTS)
        told = np.sum([step.slide for step in steps[block]], axis=0) * CELL_PX
        last = steps[block][-1]
        seen = slides[block].sum(axis=0)
        pose = pose_of(frames[FRAMES_PER_LATENT * block.stop], mode, last)
        found.append(Verdict(_pair(seen), _pair(told), pose, last.pose))
    return found


def _pair(values: NDArray[Any]) -> Cells:
    down, right = (int(value) for value in values)
    return down, right


def slide_px(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> Cells:
    """Return how far the view slid between two frames, pixels down and to the right.

    That is where they differ least where both show the same ground, but for who is in the middle.
    """
    height, width = before.shape[:2]
    one, other = before.astype(np.float32), after.astype(np.float32)
    ground = np.ones((height, width), bool)
    middle = (height - SPRITE_PX) // 2, (width - SPRITE_PX) // 2
    ground[middle[0] : middle[0] + SPRITE_PX, middle[1] : middle[1] + SPRITE_PX] = False

    def difference(down: int, right: int) -> float:
        # What the later frame shows at a place lay that far down and to the right in the earlier one.
        rows, columns = _overlap(height, down), _overlap(width, right)
        earlier, later = (rows[0], columns[0]), (rows[1], columns[1])
        seen = ground[earlier] & ground[later]
        return float(np.abs(one[earlier] - other[later])[seen].mean())

    reach = range(-_REACH_PX, _REACH_PX + 1, _GRAIN_PX)
    return min(((down, right) for down in reach for right in reach), key=lambda slide: difference(*slide))


def _overlap(size: int, slide: int) -> tuple[slice, slice]:
    """Return where a frame and the one after a slide show the same."""
    return slice(max(0, slide), size + min(0, slide)), slice(max(0, -slide), size - max(0, slide))


def pose_of(frame: NDArray[np.uint8], mode: str, told: Step) -> str:
    """Return the pose that is drawn in the middle of a frame, facing as it was told."""
    poses = ("stands", "jumps", "slides") if mode == "templerun" else ("stands",)
    top, left = ((side - SPRITE_PX) // 2 for side in frame.shape[:2])
    place = frame[top : top + SPRITE_PX, left : left + SPRITE_PX]
    near = np.abs(place.astype(np.float32) - WORLDS[mode].colour).mean(axis=-1) < _NEAR

    def cost(pose: str) -> float:
        on_black, on_white = (
            drawn_on(np.full_like(place, ground), mode, Step((0, 0), told.facing, pose)).astype(np.float32)
            for ground in (0, 255)
        )
        cover = 1 - (on_white - on_black).mean(axis=-1) / 255
        off = np.abs(place - on_black).mean(axis=-1)
        return float(np.where(cover > 0.99, off, _STRAY * near).sum())

    return min(poses, key=cost)


def obeyed(found: Sequence[Verdict]) -> float:
    """Return the share of blocks that did what their keys say."""
    return float(np.mean([verdict.obeyed for verdict in found]))
