"""What the causal video decoder takes and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.events import Event
from slipway_serving.fields import Array
from slipway_serving.requests import Request

LATENT_CHANNELS = 16
"""Of Wan's autoencoder, whose decoder it is."""
LARGEST_LATENT = 1e6
"""Far beyond any latent of unit variance; the decoder squares its features, which overflow from 1e19 on."""


@dataclass(frozen=True)
class DecodedFrames(Event):
    """The frames of one latent.

    Attributes:
        frames: [1 for a video's first latent, else 4; height; width; 3], uint8.
    """

    frames: Annotated[NDArray[np.uint8], Array("uint8", ("frames", "height", "width", 3), "RGB")]


@dataclass(frozen=True)
class Latents(Request):
    """Neighbouring latents of a video, which are decoded in their order.

    Attributes:
        latents: [1, 16, latent frames, height / 8, width / 8], float32, unit variance.
    """

    model: ClassVar[str] = "video_decoder"

    latents: Annotated[
        NDArray[np.float32],
        Array(
            "float32",
            (1, LATENT_CHANNELS, "latent_frames", "latent_height", "latent_width"),
            "latents of unit variance",
            low=-LARGEST_LATENT,
            high=LARGEST_LATENT,
        ),
    ]


@dataclass(frozen=True)
class Decoding(Request):
    """A video to be decoded: nothing but its latents, in one request or in the turns of a session."""

    model: ClassVar[str] = "video_decoder"
    events: ClassVar[tuple[type[Event], ...]] = (DecodedFrames,)
    turn: ClassVar[type[Request] | None] = Latents
