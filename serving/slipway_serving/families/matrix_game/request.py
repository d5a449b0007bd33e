"""Requests that open and steer the worlds of each mode, and the events that answer them.

A turn carries the actions of the next block of frames, a row for each frame or one row for all of them. The
answer is the block's frames as they are decoded, followed by :class:`BlockMade`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.diffusion.fields import Seed
from slipway_serving.protocol.events import Event, FramesPart, output_field
from slipway_serving.protocol.fields import Array, Image
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.rules import boolean, one_of, within
from slipway_serving.protocol.snapshots.requests import Restore, Restored, Snapshot, SnapshotPart
from slipway_serving.protocol.video.fields import MAX_FPS
from slipway_serving.video.fragments import Mp4Fragment
from slipway_serving.video.jpeg import JpegFrame

OUTPUTS = ("frames", "jpeg", "mp4", "frames_base64", "jpeg_base64", "mp4_base64")
"""Forms of the frames: uint8 pixels, JPEG files, or fragments of one MP4 file; as base64 text for protocols
that carry text only."""

MOUSE_COND, KEYBOARD_COND = "mouse_cond", "keyboard_cond"


def _keys(names: str) -> Array:
    """Return the declaration of a keyboard, with a column for each of the names."""
    columns = tuple(names.replace(" ", "_").split(",_"))
    return Array(
        "float32",
        ("frames", len(columns)),
        f"keys of each frame, 1 if pressed: {names}",
        low=0,
        high=1,
        columns=columns,
    )


Rebase = Annotated[
    bool, replace(boolean("continue from an earlier position, so that the world does not end"), flag=None)
]
"""True to generate the block at an earlier place, so that the world does not end. This is possible after
:attr:`slipway_serving.families.matrix_game.facts.Facts.rebased_position`."""

# Upstream turns by 0.1; training had no values far beyond that.
_MOUSE = Array(
    "float32",
    ("frames", 2),
    "camera turn in each frame: up, right",
    low=-1,
    high=1,
    columns=("up", "right"),
)


@dataclass(frozen=True)
class BlockMade(Event):
    """Last event of each turn, which reports the complete block.

    Attributes:
        block: Number of the block, from 0.
        frames_made: Frames of the world so far.
        frames_left: Frames until the world's end; at 0, the next turn must rebase.
        picture_s: Time for the first picture, in seconds; None except in the first block.
        denoise_s: Time of the denoising steps, in seconds.
        decode_s: Time of decoding and sending the frames, in seconds.
        commit_s: Time of the pass that updates the window of the next blocks, in seconds.
    """

    known_by: ClassVar[tuple[str, ...]] = ("frames_left",)

    block: Annotated[int, output_field("number of the block, from 0", "INT32")]
    frames_made: Annotated[int, output_field("number of frames of the world so far", "INT32")]
    frames_left: Annotated[int, output_field("number of frames until the world ends", "INT32")]
    denoise_s: Annotated[float, output_field("duration of the denoising steps, in seconds")]
    decode_s: Annotated[float, output_field("duration of decoding and sending the frames, in seconds")]
    commit_s: Annotated[
        float, output_field("duration of the pass that updates the window of the next blocks, in seconds")
    ]
    picture_s: Annotated[
        float | None,
        output_field("duration of encoding the first picture, in seconds; in the first block only"),
    ] = None


@dataclass(frozen=True, eq=False)
class UniversalActions(Request):
    """Actions in one block of a `universal` world.

    Attributes:
        mouse_cond: Turn of the camera up and right, [frames, 2], float32, -1 to 1; upstream turns by 0.1.
        keyboard_cond: Keys forward, back, left, right, [frames, 4], float32, 0 to 1.
        rebase: True to continue from an earlier place, see :data:`Rebase`.
    """

    model: ClassVar[str] = "matrix_game_universal"

    mouse_cond: Annotated[NDArray[np.float32], _MOUSE]
    keyboard_cond: Annotated[NDArray[np.float32], _keys("forward, back, left, right")]
    rebase: Rebase = False


@dataclass(frozen=True, eq=False)
class GtaDriveActions(Request):
    """Actions in one block of a `gta_drive` world.

    Attributes:
        mouse_cond: Turn up and right, [frames, 2], float32, -1 to 1; upstream steers right by 0.1.
        keyboard_cond: Keys forward, back, [frames, 2], float32, 0 to 1.
        rebase: True to continue from an earlier place, see :data:`Rebase`.
    """

    model: ClassVar[str] = "matrix_game_gta_drive"

    mouse_cond: Annotated[NDArray[np.float32], _MOUSE]
    keyboard_cond: Annotated[NDArray[np.float32], _keys("forward, back")]
    rebase: Rebase = False


@dataclass(frozen=True, eq=False)
class TempleRunActions(Request):
    """Actions in one block of a `templerun` world.

    Attributes:
        keyboard_cond: Keys still, jump, slide, turn left, turn right, left side, right side, [frames, 7],
            float32, 0 to 1.
        rebase: True to continue from an earlier place, see :data:`Rebase`.
    """

    model: ClassVar[str] = "matrix_game_templerun"

    keyboard_cond: Annotated[
        NDArray[np.float32], _keys("still, jump, slide, turn left, turn right, left side, right side")
    ]
    rebase: Rebase = False


@dataclass(frozen=True, eq=False)
class WorldRequest(Request):
    """Open a world that begins with a picture.

    Attributes:
        image: First frame, as bytes of a file or as uint8 pixels [height, width, 3]; it is cropped around its
            centre to the aspect of the world's frames and resized to them.
        seed: Seed of the noise, which continues over the blocks.
        fps: Frames per second at which the world is shown; a block that takes longer than its frames last is
            counted as late. 0 counts none; MP4 output needs a rate above 0.
        output: Form of the frames, one of :data:`OUTPUTS`.

    Raises:
        InvalidRequest: A field breaks its rule; all such fields are named.
    """

    events: ClassVar[tuple[type[Event], ...]] = (
        FramesPart,
        JpegFrame,
        Mp4Fragment,
        BlockMade,
        SnapshotPart,
        Restored,
    )
    turn_alternatives: ClassVar[tuple[type[Request], ...]] = (Snapshot, Restore)

    image: Annotated[
        bytes | NDArray[np.uint8], Image("first frame; it is cropped and resized to the world's frames")
    ]
    seed: Seed = 0
    fps: Annotated[
        int,
        within(
            0, MAX_FPS, "frames per second at which the world is shown, to count late blocks; 0 counts none"
        ),
    ] = 0
    # The command line writes arrays only, so it has no flag for this field.
    output: Annotated[str, replace(one_of(OUTPUTS, "form of the frames"), flag=None)] = "frames"

    def conflicts(self) -> list[str]:
        """Return the problem of an MP4 output without a rate."""
        if self.output.startswith("mp4") and not self.fps:
            return [f"fps must be 1 to {MAX_FPS} with output {self.output}, got 0; try 25"]
        return []


class UniversalRequest(WorldRequest):
    """Open a world that is steered by 4 keys and a mouse."""

    model: ClassVar[str] = "matrix_game_universal"
    turn: ClassVar[type[Request] | None] = UniversalActions


class GtaDriveRequest(WorldRequest):
    """Open a drive that is steered by 2 keys and a mouse."""

    model: ClassVar[str] = "matrix_game_gta_drive"
    turn: ClassVar[type[Request] | None] = GtaDriveActions


class TempleRunRequest(WorldRequest):
    """Open a run that is steered by 7 keys."""

    model: ClassVar[str] = "matrix_game_templerun"
    turn: ClassVar[type[Request] | None] = TempleRunActions


REQUESTS: Mapping[str, type[WorldRequest]] = {
    "universal": UniversalRequest,
    "gta_drive": GtaDriveRequest,
    "templerun": TempleRunRequest,
}
"""Request classes that open a world, by mode."""


def actions_of(turn: Any) -> dict[str, NDArray[np.float32]]:
    """Return the actions of a turn, by the names of the network's inputs."""
    found = {name: getattr(turn, name, None) for name in (MOUSE_COND, KEYBOARD_COND)}
    return {name: rows for name, rows in found.items() if rows is not None}


def row_problems(actions: Mapping[str, NDArray[np.float32]], frames: int) -> list[str]:
    """Return a sentence for each array of actions that has neither a row for each frame nor one for all.

    Args:
        actions: Actions by name, [rows, ...] each.
        frames: Number of frames of the block.
    """
    return [
        f"{name} must have {frames} rows, one for each frame of the block, or 1 row for all, got shape"
        f" {list(rows.shape)}"
        for name, rows in actions.items()
        if len(rows) not in (1, frames)
    ]
