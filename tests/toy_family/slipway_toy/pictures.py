"""Pictures to latents and latents to frames, by the served models."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipway_serving.runtime.program import Models
from slipway_serving.video.frames import Frames, to_uint8


def encode_picture(picture: NDArray[np.uint8], models: Models) -> NDArray[np.float32]:
    """Return the latents of a picture, [1, channels, height / 8, width / 8].

    Args:
        picture: Pixels, [height, width, 3], multiples of 8.
        models: Access to the served models.
    """
    samples = picture.astype(np.float32).transpose(2, 0, 1)[None] / np.float32(127.5) - 1
    inputs = {"image": np.ascontiguousarray(samples)}
    condition: NDArray[np.float32] = models.call("toy_image_encoder", inputs, ["condition"])["condition"]
    return condition


def decode_frames(latents: NDArray[np.float32], models: Models) -> Frames:
    """Return the frames of a block's latents.

    Args:
        latents: Clean latents, [1, channels, frames, height, width].
        models: Access to the served models.
    """
    return to_uint8(models.call("toy_decoder", {"latents": latents}, ["sample"])["sample"])
