"""Fields that requests for video share, each with its rule; a family's request picks them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from slipway_serving.fields import Rule
from slipway_serving.rules import multiple, one_of, switch, within

OUTPUTS = ("video", "video_base64", "frames", "frames_base64")
"""Forms of a result: an MP4 file or uint8 frames; as base64 text for protocols that carry text only."""
MAX_FPS = 120


def side_rule(side: str, of: int) -> Rule:
    """Return the rule of a video's height or width.

    Args:
        side: "height" or "width".
        of: pixels whose multiple it is: those of a latent pixel times the network's patch.
    """
    return multiple(of, f"{side} of the video, pixels")


Fps = Annotated[int, within(1, MAX_FPS, "frames per second")]
# The command line chooses the form by the file that it writes, and shows no pictures.
Output = Annotated[str, replace(one_of(OUTPUTS, "form of the result"), flag=None)]
Preview = Annotated[bool, replace(switch("send a small picture after each step"), flag=None)]
