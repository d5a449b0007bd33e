"""Judge that decides from frames whether a world obeyed its keys, by the view's slide and the player's pose.

It is not trained. It finds a slide by comparing two frames at every offset, and a pose by drawing each pose
and comparing it with the frame. It is first evaluated on renders, before and after a VAE, and then judges
worlds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_loadtests.pictures.plays import (
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
# Range and step of the slides that are tried per latent frame; a world slides by one cell at most.
_REACH_PX, _GRAIN_PX = 16, 4
# A block obeys the keys if its whole slide deviates by less than this from the slide that the keys ask for.
_OFF_PX = CELL_PX // 2
# Cost of a pixel that has the player's colour where the pose draws nothing, and the tolerance of that colour.
_STRAY, _NEAR = 120.0, 70.0


@dataclass(frozen=True)
class Verdict:
    """Observed and expected slide and pose of a block.

    Args:
        slide: Slide of the view over the block, in pixels, down and to the right.
        told: Slide that the keys ask for, in pixels.
        pose: Pose in the last frame of the block.
        told_pose: Pose that the keys ask for.
    """

    slide: Cells
    told: Cells
    pose: str
    told_pose: str

    @property
    def obeyed(self) -> bool:
        """Return True if slide and pose are as the keys ask."""
        near = all(abs(seen - told) < _OFF_PX for seen, told in zip(self.slide, self.told, strict=True))
        return near and self.pose == self.told_pose


def verdicts(frames: Frames, mode: str, steps: Sequence[Step]) -> list[Verdict]:
    """Judge each block of a play.

    Args:
        frames: Frames of the play, [1 + 4 * steps, height, width, 3], RGB.
        mode: Mode, a key of `WORLDS`.
        steps: Steps that the actions ask for, one for each latent frame after the first.
    """
    shown = frames[::FRAMES_PER_LATENT]
    slides = np.array([slide_px(before, after) for before, after in pairwise(shown)])
    found = []
    # The first latent frame of the first block is the picture, which has no step.
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
    """Return how far the view slid between two frames, in pixels down and to the right.

    The result is the slide at which their common ground differs least, with the player in the middle masked
    out.
    """
    height, width = before.shape[:2]
    one, other = before.astype(np.float32), after.astype(np.float32)
    ground = np.ones((height, width), bool)
    middle = (height - SPRITE_PX) // 2, (width - SPRITE_PX) // 2
    ground[middle[0] : middle[0] + SPRITE_PX, middle[1] : middle[1] + SPRITE_PX] = False

    def difference(down: int, right: int) -> float:
        # A place in the later frame was that far down and to the right in the earlier frame.
        rows, columns = _overlap(height, down), _overlap(width, right)
        earlier, later = (rows[0], columns[0]), (rows[1], columns[1])
        seen = ground[earlier] & ground[later]
        return float(np.abs(one[earlier] - other[later])[seen].mean())

    reach = range(-_REACH_PX, _REACH_PX + 1, _GRAIN_PX)
    return min(((down, right) for down in reach for right in reach), key=lambda slide: difference(*slide))


def _overlap(size: int, slide: int) -> tuple[slice, slice]:
    """Return the slices along one axis that show the same ground before and after a slide."""
    return slice(max(0, slide), size + min(0, slide)), slice(max(0, -slide), size - max(0, slide))


def pose_of(frame: NDArray[np.uint8], mode: str, told: Step) -> str:
    """Return the pose of the player in the middle of a frame, assuming the facing of the step."""
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
    """Return the share of blocks that obeyed their keys."""
    return float(np.mean([verdict.obeyed for verdict in found]))
