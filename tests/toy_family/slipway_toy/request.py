"""What opens a world, and what each of its turns brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol import images
from slipway_serving.protocol.diffusion.fields import Seed
from slipway_serving.protocol.events import Event, FramesPart, Progress
from slipway_serving.protocol.fields import Array, Image
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.rules import one_of

BLOCK_FRAMES = 2
ACTIONS = 4
PIXELS_PER_LATENT = 8
MODEL = "toy_world"

FirstFrame = Annotated[bytes | NDArray[np.uint8], Image("the first frame", smallest_px=16, largest_px=64)]
Output = Annotated[str, one_of(("frames", "frames_base64"), "form of the frames")]


@dataclass(frozen=True, eq=False)
class Steering(Request):
    """What is done in one block of frames.

    Attributes:
        actions: [2, 4], float32, -1 to 1: left, right, up, down, for each frame.
    """

    model: ClassVar[str] = MODEL

    actions: Annotated[
        NDArray[np.float32],
        Array("float32", (BLOCK_FRAMES, ACTIONS), "left, right, up, down for each frame", low=-1, high=1),
    ]


@dataclass(frozen=True, eq=False)
class ToyWorldRequest(Request):
    """A world that begins with a picture.

    Attributes:
        image: the first frame: bytes of a file, or uint8 pixels [height, width, 3], multiples of 8.
        seed: of the noise; goes on over the blocks.
        output: "frames" (uint8) or "frames_base64".

    Raises:
        InvalidRequest: naming every field that breaks its rule.
    """

    model: ClassVar[str] = MODEL
    events: ClassVar[tuple[type[Event], ...]] = (Progress, FramesPart)
    turn: ClassVar[type[Request] | None] = Steering

    image: FirstFrame
    seed: Seed = 0
    output: Output = "frames"

    def conflicts(self) -> list[str]:
        """Return what is wrong with the picture's sides, once it is known to be one."""
        return side_problems(self.image)


def side_problems(image: bytes | NDArray[np.uint8]) -> list[str]:
    """Return the problem of a picture whose sides are no multiples of 8: a list of at most one sentence."""
    height, width, _ = images.pixels(image).shape
    if height % PIXELS_PER_LATENT or width % PIXELS_PER_LATENT:
        return [f"image must be multiples of {PIXELS_PER_LATENT} px a side, got {width}x{height}"]
    return []
