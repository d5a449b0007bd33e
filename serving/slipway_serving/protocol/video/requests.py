"""Requests and responses of the causal video decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.events import Event
from slipway_serving.protocol.fields import Array
from slipway_serving.protocol.requests import Request

LARGEST_LATENT = 1e6
"""Largest absolute value of a latent, far beyond unit variance.

The decoder squares its features, which overflow from 1e19 on.
"""


@dataclass(frozen=True)
class DecodedFrames(Event):
    """Frames of one latent.

    Attributes:
        frames: Frames, [1 for a video's first latent, else 4; height; width; 3], uint8.
    """

    frames: Annotated[NDArray[np.uint8], Array("uint8", ("frames", "height", "width", 3), "RGB")]


@dataclass(frozen=True)
class Latents(Request):
    """Consecutive latents of a video, which are decoded in their order.

    Attributes:
        latents: Latents, [1, channels, latent frames, height / 8, width / 8], float32, unit variance.
    """

    model: ClassVar[str] = "video_decoder"

    latents: Annotated[
        NDArray[np.float32],
        Array(
            "float32",
            (1, "latent_channels", "latent_frames", "latent_height", "latent_width"),
            "latents of unit variance",
            low=-LARGEST_LATENT,
            high=LARGEST_LATENT,
        ),
    ]


@dataclass(frozen=True)
class Decoding(Request):
    """Request to decode a video; its latents come in one request or in the turns of a session."""

    model: ClassVar[str] = "video_decoder"
    events: ClassVar[tuple[type[Event], ...]] = (DecodedFrames,)
    turn: ClassVar[type[Request] | None] = Latents
