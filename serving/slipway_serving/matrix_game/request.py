"""What opens a world of each mode, what its turns bring, and what they are answered with.

A turn brings the actions of the next block of frames, a row for each frame or one row for all of them. It is
answered with the block's frames as they are decoded, then with :class:`BlockMade`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.diffusion.fields import Seed
from slipway_serving.events import Event, FramesPart, told
from slipway_serving.fields import Array, Image
from slipway_serving.requests import Request
from slipway_serving.rules import one_of, switch, within
from slipway_serving.snapshots.requests import Restore, Restored, Snapshot, SnapshotPart
from slipway_serving.video.fields import MAX_FPS
from slipway_serving.video.fragments import Mp4Fragment
from slipway_serving.video.jpeg import JpegFrame

OUTPUTS = ("frames", "jpeg", "mp4", "frames_base64", "jpeg_base64", "mp4_base64")
"""Forms of the frames: uint8 pixels, JPEG files, or fragments of one MP4 file; as base64 text for protocols
that carry text only."""

MOUSE_COND, KEYBOARD_COND = "mouse_cond", "keyboard_cond"


def _keys(names: str) -> Array:
    """Return the statement of a keyboard: a column for each of the names."""
    columns = len(names.split(", "))
    return Array("float32", ("frames", columns), f"keys of each frame, 1 is pressed: {names}", low=0, high=1)


Rebase = Annotated[
    bool, replace(switch("go on from an earlier place, so that the world does not end"), flag=None)
]
"""Whether the block is made at an earlier place than it would be, so that the world does not end: possible
from where places no longer differ to the picture."""

# Upstream turns by 0.1; what is far beyond was in no training.
_MOUSE = Array("float32", ("frames", 2), "turn of the camera in each frame: up, right", low=-1, high=1)


@dataclass(frozen=True)
class BlockMade(Event):
    """A block of frames is complete: the last answer to each turn.

    Attributes:
        block: which, from 0.
        frames_made: frames of the world so far.
        frames_left: frames until the world's end; with 0, the next turn must rebase.
        picture_s: seconds that the first picture took; None but in the first block.
        denoise_s: seconds of the denoising steps.
        decode_s: seconds of decoding and sending the frames.
        commit_s: seconds of the pass that the next blocks remember.
    """

    known_by: ClassVar[tuple[str, ...]] = ("frames_left",)

    block: Annotated[int, told("which block, from 0", "INT32")]
    frames_made: Annotated[int, told("frames of the world so far", "INT32")]
    frames_left: Annotated[int, told("frames until the world's end", "INT32")]
    denoise_s: Annotated[float, told("seconds of the denoising steps")]
    decode_s: Annotated[float, told("seconds of decoding and sending the frames")]
    commit_s: Annotated[float, told("seconds of the pass that the next blocks remember")]
    picture_s: Annotated[float | None, told("seconds of the first picture, in the first block")] = None


@dataclass(frozen=True, eq=False)
class UniversalActions(Request):
    """What is done in one block of a `universal` world.

    Attributes:
        mouse_cond: [frames, 2], float32, -1 to 1: up, right; upstream turns by 0.1.
        keyboard_cond: [frames, 4], float32, 0 to 1: forward, back, left, right.
        rebase: see :data:`Rebase`.
    """

    model: ClassVar[str] = "matrix_game_universal"

    mouse_cond: Annotated[NDArray[np.float32], _MOUSE]
    keyboard_cond: Annotated[NDArray[np.float32], _keys("forward, back, left, right")]
    rebase: Rebase = False


@dataclass(frozen=True, eq=False)
class GtaDriveActions(Request):
    """What is done in one block of a `gta_drive` world.

    Attributes:
        mouse_cond: [frames, 2], float32, -1 to 1: up, right; upstream steers by 0.1 to the right.
        keyboard_cond: [frames, 2], float32, 0 to 1: forward, back.
        rebase: see :data:`Rebase`.
    """

    model: ClassVar[str] = "matrix_game_gta_drive"

    mouse_cond: Annotated[NDArray[np.float32], _MOUSE]
    keyboard_cond: Annotated[NDArray[np.float32], _keys("forward, back")]
    rebase: Rebase = False


@dataclass(frozen=True, eq=False)
class TempleRunActions(Request):
    """What is done in one block of a `templerun` world.

    Attributes:
        keyboard_cond: [frames, 7], float32, 0 to 1: still, jump, slide, turn left, turn right, left side,
            right side.
        rebase: see :data:`Rebase`.
    """

    model: ClassVar[str] = "matrix_game_templerun"

    keyboard_cond: Annotated[
        NDArray[np.float32], _keys("still, jump, slide, turn left, turn right, left side, right side")
    ]
    rebase: Rebase = False


@dataclass(frozen=True, eq=False)
class WorldRequest(Request):
    """A world that begins with a picture.

    Attributes:
        image: the first frame: bytes of a file, or uint8 pixels [height, width, 3]; cut around its middle to
            the aspect of the world's frames and resized to them.
        seed: of the noise; goes on over the blocks.
        fps: frames a second that the world is shown at; a block that takes longer than its frames last is
            counted as late. 0 counts none; a file must have a rate.
        output: one of :data:`OUTPUTS`.

    Raises:
        InvalidRequest: naming every field that breaks its rule.
    """

    events: ClassVar[tuple[type[Event], ...]] = (
        FramesPart,
        JpegFrame,
        Mp4Fragment,
        BlockMade,
        SnapshotPart,
        Restored,
    )
    instead: ClassVar[tuple[type[Request], ...]] = (Snapshot, Restore)

    image: Annotated[bytes | NDArray[np.uint8], Image("the first frame, cut and resized to the world's")]
    seed: Seed = 0
    fps: Annotated[
        int, within(0, MAX_FPS, "frames a second it is shown at, to count late blocks; 0 is none")
    ] = 0
    # The command line writes arrays.
    output: Annotated[str, replace(one_of(OUTPUTS, "form of the frames"), flag=None)] = "frames"

    def conflicts(self) -> list[str]:
        """Return what is wrong with the rate, which a file of frames must have."""
        if self.output.startswith("mp4") and not self.fps:
            return [f"fps must be 1 to {MAX_FPS} with output {self.output}, got 0; try 25"]
        return []


class UniversalRequest(WorldRequest):
    """A world that 4 keys and a mouse steer."""

    model: ClassVar[str] = "matrix_game_universal"
    turn: ClassVar[type[Request] | None] = UniversalActions


class GtaDriveRequest(WorldRequest):
    """A drive that 2 keys and a mouse steer."""

    model: ClassVar[str] = "matrix_game_gta_drive"
    turn: ClassVar[type[Request] | None] = GtaDriveActions


class TempleRunRequest(WorldRequest):
    """A run that 7 keys steer."""

    model: ClassVar[str] = "matrix_game_templerun"
    turn: ClassVar[type[Request] | None] = TempleRunActions


REQUESTS: Mapping[str, type[WorldRequest]] = {
    "universal": UniversalRequest,
    "gta_drive": GtaDriveRequest,
    "templerun": TempleRunRequest,
}
"""What opens a world, by mode."""


def actions_of(turn: Any) -> dict[str, NDArray[np.float32]]:
    """Return the actions that a turn brings, by the network's names."""
    found = {name: getattr(turn, name, None) for name in (MOUSE_COND, KEYBOARD_COND)}
    return {name: rows for name, rows in found.items() if rows is not None}


def row_problems(actions: Mapping[str, NDArray[np.float32]], frames: int) -> list[str]:
    """Return a sentence for each array of actions that has neither a row for each frame nor one for all.

    Args:
        actions: by name, [rows, ...] each.
        frames: of the block.
    """
    return [
        f"{name} must have {frames} frames in this block, or 1 for all of them, got shape {list(rows.shape)}"
        for name, rows in actions.items()
        if len(rows) not in (1, frames)
    ]
