"""Fields that requests for video share, each with its rule; the request class of a family picks from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from slipway_serving.protocol.fields import Rule
from slipway_serving.protocol.rules import boolean, multiple, one_of, within

OUTPUTS = ("video", "video_base64", "frames", "frames_base64")
"""Forms of a result: an MP4 file or uint8 frames, each also as base64 text for protocols that need text."""
MAX_FPS = 120


def side_rule(side: str, of: int) -> Rule:
    """Return the rule of a video's height or width.

    Args:
        side: Side of the video, "height" or "width".
        of: Number of pixels that divides the side: pixels per latent pixel times the network's patch size.
    """
    return multiple(of, f"{side} of the video, in pixels")


Fps = Annotated[int, within(1, MAX_FPS, "frames per second of the video file")]
# These two have no flag: the command line derives the form from the output file and shows no pictures.
Output = Annotated[str, replace(one_of(OUTPUTS, "form of the result"), flag=None)]
Preview = Annotated[bool, replace(boolean("send a small preview after each denoising step"), flag=None)]
