"""The request of the pipeline toy_video."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from slipway_serving.protocol import images
from slipway_serving.protocol.diffusion.fields import Seed
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.events import Event, FramesPart, Progress
from slipway_serving.protocol.rules import within
from slipway_toy.request import BLOCK_FRAMES, FirstFrame, Output, side_problems

MOST_BLOCKS = 1000


@dataclass(frozen=True, eq=False)
class ToyVideoRequest(DenoisingRequest):
    """A video that begins with a picture.

    Attributes:
        image: The first frame: bytes of a file, or uint8 pixels [height, width, 3], multiples of 8.
        blocks: Number of blocks of two frames, 1 to 1000.
        seed: Seed of the noise, which goes on over the blocks.
        output: Form of the frames: "frames" (uint8) or "frames_base64".

    Raises:
        InvalidRequest: A field breaks its rule; all such fields are named.
    """

    model: ClassVar[str] = "toy_video"
    events: ClassVar[tuple[type[Event], ...]] = (Progress, FramesPart)

    image: FirstFrame
    blocks: Annotated[int, within(1, MOST_BLOCKS, "number of blocks of two frames")] = 3
    seed: Seed = 0
    output: Output = "frames"

    def conflicts(self) -> list[str]:
        """Return what is wrong with the picture's sides, besides the problems of every pipeline."""
        return [*super().conflicts(), *side_problems(self.image)]

    @property
    def frames(self) -> int:
        """Number of frames of the video."""
        return self.blocks * BLOCK_FRAMES

    def result_shape(self) -> tuple[int, int, int, int]:
        """Return the shape of all frames."""
        height, width, _ = images.pixels(self.image).shape
        return self.frames, height, width, 3
