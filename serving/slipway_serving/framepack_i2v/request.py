"""What a caller may ask of the model framepack_i2v, and what its tokenizer takes: each rule beside its field.

A video is made of whole sections of 36 frames, and one frame more; how many follow from the seconds that are
asked for, as FramePack counts them. What depends on the exported models (sizes, tokens of the prompt) is
checked by the pipeline. Values are refused, never clamped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving import images
from slipway_serving.diffusion.fields import (
    CacheThreshold,
    Seed,
    Steps,
    TimeoutS,
    prompt_rule,
    refused_without_cache,
    scale_rule,
)
from slipway_serving.errors import raise_all
from slipway_serving.events import Event, FramesPart, Progress, VideoPart
from slipway_serving.fields import Array, Image, Rule
from slipway_serving.requests import Request
from slipway_serving.rules import one_of, outside_exported, within
from slipway_serving.video.fields import Output, side_rule

FPS = 30
"""Frames per second that FramePack was trained with."""
SECTION_FRAMES = 9
"""Latent frames of a section; FramePack was trained with no other number."""
FRAMES_PER_LATENT = 4
PIXELS_PER_TOKEN = 16
"""A latent pixel is 8 pixels wide and the transformer's patch 2 latent pixels."""
USUAL_SIDE_PX = 640
"""Side of a square video of the size that FramePack was trained with."""
LONGEST_S = 120.0
ORDERS = ("inverted", "forward")
"""Last section first, against drifting; or first section first, as F1 checkpoints are trained."""

_STEP_FRAMES = SECTION_FRAMES * FRAMES_PER_LATENT
_PROMPT = prompt_rule("what happens in the video")


def _side(side: str) -> Rule:
    usual = f"the picture's aspect at about {USUAL_SIDE_PX}x{USUAL_SIDE_PX}"
    return replace(side_rule(side, PIXELS_PER_TOKEN), default=usual)


# A video of no text is not what the model was trained for, and a forgotten prompt is the likelier cause.
_SOME_PROMPT = replace(
    _PROMPT,
    must=f"some text of {_PROMPT.must}",
    accepts=lambda value: bool(value.strip()) and _PROMPT.accepts(value),
    fix=lambda value: _PROMPT.fix(value) if value.strip() else "a sentence about what moves",
)


@dataclass(frozen=True)
class Limits:
    """What the exported models can do.

    Attributes:
        height: smallest and largest height, pixels.
        width: smallest and largest width, pixels.
        first_block_cache: whether the transformer can reuse what its later blocks gave.
    """

    height: tuple[int, int]
    width: tuple[int, int]
    first_block_cache: bool = False


@dataclass(frozen=True, eq=False)
class ImageToVideoRequest(Request):
    """A video that begins with a picture.

    Attributes:
        image: the first frame; cut around its middle to the video's aspect and resized.
        prompt: what happens; of at most 256 tokens with those that end it.
        seconds: length of the video, 0.1 to 120; the nearest number of whole sections of 1.2 s is made.
        order: "inverted" makes the last section first, so that errors do not add up; "forward" goes on from
            the picture, for F1 checkpoints.
        height: pixels, a multiple of 16; None, with `width`, has the picture's aspect at about 640x640.
        width: pixels, a multiple of 16; as `height`.
        steps: denoising steps of each section, 1 to 100.
        guidance_scale: of the distilled guidance, an input of the transformer.
        cache_threshold: relative change of the transformer's first block up to which its other blocks are not
            computed anew; None computes every block of every step.
        seed: of the noise; the same seed gives the same video.
        output: "video" (MP4), "video_base64" (MP4 as text, for HTTP), "frames" (uint8 arrays) or
            "frames_base64".
        timeout_s: give up after this many seconds; None never does.

    Raises:
        InvalidRequest: naming every field that breaks its rule.
    """

    model: ClassVar[str] = "framepack_i2v"
    events: ClassVar[tuple[type[Event], ...]] = (Progress, FramesPart, VideoPart)
    fps: ClassVar[int] = FPS

    image: Annotated[bytes | NDArray[np.uint8], Image("first frame, cut and resized to the video's size")]
    prompt: Annotated[str, _SOME_PROMPT]
    seconds: Annotated[float, within(0.1, LONGEST_S, "length of the video, seconds, in whole sections")] = 5.0
    order: Annotated[str, one_of(ORDERS, "which section is made first: the last or the first")] = ORDERS[0]
    height: Annotated[int | None, _side("height")] = None
    width: Annotated[int | None, _side("width")] = None
    steps: Steps = 25
    guidance_scale: Annotated[float, scale_rule("weight of the prompt, distilled")] = 10.0
    cache_threshold: CacheThreshold = None
    seed: Seed = 0
    output: Output = "video"
    timeout_s: TimeoutS = None

    def conflicts(self) -> list[str]:
        """Return what height and width break together."""
        if (self.height is None) == (self.width is None):
            return []
        given, missing = ("height", "width") if self.width is None else ("width", "height")
        return [f"{missing} must be given with {given}, got none; try giving both or neither"]

    @property
    def sections(self) -> int:
        """How many sections the video has."""
        return max(1, round(self.seconds * FPS / _STEP_FRAMES))

    @property
    def frames(self) -> int:
        """How many frames the video has."""
        return self.sections * _STEP_FRAMES + 1

    @cached_property
    def size_px(self) -> tuple[int, int]:
        """Height and width of the video: those that were asked for, or those that follow from the picture."""
        if self.height is not None and self.width is not None:
            return self.height, self.width
        height, width, _ = images.pixels(self.image).shape
        slope = math.sqrt(height / width)
        return _usual_side(slope), _usual_side(1 / slope)

    def result_shape(self) -> tuple[int, int, int, int]:
        """Return the shape of all frames."""
        return self.frames, *self.size_px, 3

    def check_against(self, limits: Limits) -> None:
        """Check what depends on the exported models.

        Args:
            limits: of the models beside the pipeline.

        Raises:
            InvalidRequest: naming every field out of range, and cache_threshold without a transformer that
                can reuse.
        """
        height, width = self.size_px
        problems = [
            *outside_exported("height", height, limits.height, " px"),
            *outside_exported("width", width, limits.width, " px"),
            *refused_without_cache(self.cache_threshold, limits.first_block_cache),
        ]
        raise_all(self.model, problems)


def _usual_side(share: float) -> int:
    """Return a side in whole tokens, so many times that of a square."""
    return max(1, round(share * USUAL_SIDE_PX / PIXELS_PER_TOKEN)) * PIXELS_PER_TOKEN


_IDS = "ids of {}, one row"


@dataclass(frozen=True)
class PromptTokens(Event):
    """A prompt as its two encoders take it.

    Attributes:
        llama_ids: [1, tokens], int64, the template with the prompt in it.
        clip_ids: [1, tokens], int64, the prompt alone, padded and cut to the length that CLIP has.
    """

    llama_ids: Annotated[NDArray[np.int64], Array("int64", (1, "llama_tokens"), _IDS.format("LLaMA"))]
    clip_ids: Annotated[NDArray[np.int64], Array("int64", (1, "clip_tokens"), _IDS.format("CLIP"))]


@dataclass(frozen=True)
class TokensRequest(Request):
    """A prompt to be tokenized.

    Attributes:
        prompt: as in :class:`ImageToVideoRequest`.
    """

    model: ClassVar[str] = "framepack_i2v_tokenizer"
    events: ClassVar[tuple[type[Event], ...]] = (PromptTokens,)
    streams: ClassVar[bool] = False

    prompt: Annotated[str, _SOME_PROMPT]
