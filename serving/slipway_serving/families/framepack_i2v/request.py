"""Requests of the model framepack_i2v and of its tokenizer, with the validation rule of each field.

A video consists of whole sections of 36 frames, plus one frame; their number follows from the requested
seconds, as FramePack counts them. The pipeline checks what depends on the exported models (sizes, tokens of
the prompt). Values out of range are refused, never clamped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol import images
from slipway_serving.protocol.diffusion.fields import (
    CacheThreshold,
    Seed,
    Steps,
    TimeoutS,
    cache_problems,
    prompt_rule,
    scale_rule,
)
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.errors import raise_all
from slipway_serving.protocol.events import Event, FramesPart, Progress, VideoPart
from slipway_serving.protocol.fields import Array, Image, Rule
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.rules import export_range_problems, one_of, within
from slipway_serving.protocol.video.fields import Output, side_rule

FPS = 30
"""Frames per second that FramePack was trained with."""
SECTION_FRAMES = 9
"""Latent frames of a section; FramePack was trained with this number only."""
FRAMES_PER_LATENT = 4
PIXELS_PER_TOKEN = 16
"""Side of a token in pixels: a latent pixel has 8 pixels, and the transformer's patch 2 latent pixels."""
USUAL_SIDE_PX = 640
"""Side of a square video of the size that FramePack was trained with."""
LONGEST_S = 120.0
ORDERS = ("inverted", "forward")
"""Order of the sections: last first, which reduces drift, or first first, as F1 checkpoints are trained."""

_STEP_FRAMES = SECTION_FRAMES * FRAMES_PER_LATENT
_PROMPT = prompt_rule("text that describes what happens in the video")


def _side(side: str) -> Rule:
    usual = f"the picture's aspect ratio at about {USUAL_SIDE_PX}x{USUAL_SIDE_PX}"
    return replace(side_rule(side, PIXELS_PER_TOKEN), default=usual)


# The model was not trained without text, and an empty prompt is more likely a mistake.
_SOME_PROMPT = replace(
    _PROMPT,
    must=f"some text of {_PROMPT.must}",
    accepts=lambda value: bool(value.strip()) and _PROMPT.accepts(value),
    fix=lambda value: _PROMPT.fix(value) if value.strip() else "a sentence that describes what moves",
)


@dataclass(frozen=True)
class Limits:
    """Limits of the exported models.

    Attributes:
        height: Smallest and largest height, in pixels.
        width: Smallest and largest width, in pixels.
        first_block_cache: True if the transformer can reuse the output of its later blocks.
    """

    height: tuple[int, int]
    width: tuple[int, int]
    first_block_cache: bool = False


@dataclass(frozen=True, eq=False)
class ImageToVideoRequest(DenoisingRequest):
    """Generate a video that begins with a picture.

    Attributes:
        image: First frame; it is cropped around its centre to the video's aspect and resized.
        prompt: Text that describes what happens, at most 256 tokens including those that end it.
        seconds: Length of the video, 0.1 to 120; it is rounded to whole sections of 1.2 s.
        order: Order of generation. "inverted" generates the last section first, so that errors do not add up;
            "forward" continues from the picture, for F1 checkpoints.
        height: Height in pixels, a multiple of 16; None, together with `width`, keeps the picture's aspect at
            about 640x640.
        width: Width in pixels, a multiple of 16; None as for `height`.
        steps: Denoising steps of each section, 1 to 100.
        guidance_scale: Scale of the distilled guidance, an input of the transformer.
        cache_threshold: Relative change of the transformer's first block up to which the output of its other
            blocks is reused; None computes every block in every step.
        seed: Seed of the noise; the same seed gives the same video.
        output: Form of the result: "video" (MP4), "video_base64" (MP4 as text, for HTTP), "frames" (uint8
            arrays) or "frames_base64".
        timeout_s: Time limit in seconds; None means no limit.

    Raises:
        InvalidRequest: A field breaks its rule; all such fields are named.
    """

    model: ClassVar[str] = "framepack_i2v"
    events: ClassVar[tuple[type[Event], ...]] = (Progress, FramesPart, VideoPart)
    fps: ClassVar[int] = FPS
    conditions: ClassVar[frozenset[str]] = frozenset({"prompt", "guidance_scale"})

    image: Annotated[
        bytes | NDArray[np.uint8], Image("first frame; it is cropped and resized to the video's size")
    ]
    prompt: Annotated[str, _SOME_PROMPT]
    seconds: Annotated[
        float, within(0.1, LONGEST_S, "length of the video, in seconds, rounded to sections of 1.2 s")
    ] = 5.0
    order: Annotated[str, one_of(ORDERS, "order of the sections: inverted generates the last one first")] = (
        ORDERS[0]
    )
    height: Annotated[int | None, _side("height")] = None
    width: Annotated[int | None, _side("width")] = None
    steps: Steps = 25
    guidance_scale: Annotated[float, scale_rule("scale of the distilled guidance")] = 10.0
    cache_threshold: CacheThreshold = None
    seed: Seed = 0
    output: Output = "video"
    timeout_s: TimeoutS = None

    def conflicts(self) -> list[str]:
        """Return the problem of a height without a width, or the reverse, besides those of every pipeline."""
        problems = super().conflicts()
        if (self.height is None) == (self.width is None):
            return problems
        given, missing = ("height", "width") if self.width is None else ("width", "height")
        return [*problems, f"{missing} must be given with {given}, got none; try giving both or neither"]

    @property
    def sections(self) -> int:
        """Return the number of sections of the video."""
        return max(1, round(self.seconds * FPS / _STEP_FRAMES))

    @property
    def frames(self) -> int:
        """Return the number of frames of the video."""
        return self.sections * _STEP_FRAMES + 1

    @cached_property
    def size_px(self) -> tuple[int, int]:
        """Return the height and width of the video, as requested or as they follow from the picture."""
        if self.height is not None and self.width is not None:
            return self.height, self.width
        height, width, _ = images.pixels(self.image).shape
        slope = math.sqrt(height / width)
        return _usual_side(slope), _usual_side(1 / slope)

    def result_shape(self) -> tuple[int, int, int, int]:
        """Return the shape of all frames."""
        return self.frames, *self.size_px, 3

    def check_against(self, limits: Limits) -> None:
        """Check the fields that depend on the exported models.

        Args:
            limits: Limits of the exported models.

        Raises:
            InvalidRequest: A field is out of range, or cache_threshold is given for a transformer without a
                first-block cache; all problems are named.
        """
        height, width = self.size_px
        problems = [
            *export_range_problems("height", height, limits.height, " px"),
            *export_range_problems("width", width, limits.width, " px"),
            *cache_problems(self.cache_threshold, limits.first_block_cache),
        ]
        raise_all(self.model, problems)


def _usual_side(share: float) -> int:
    """Return the usual square's side times a factor, rounded to whole tokens."""
    return max(1, round(share * USUAL_SIDE_PX / PIXELS_PER_TOKEN)) * PIXELS_PER_TOKEN


_IDS = "token ids for {}, one row"


@dataclass(frozen=True)
class PromptTokens(Event):
    """Tokens of a prompt for its two encoders.

    Attributes:
        llama_ids: Ids of the template with the prompt in it, [1, tokens], int64.
        clip_ids: Ids of the prompt alone, padded or cut to CLIP's length, [1, tokens], int64.
    """

    llama_ids: Annotated[NDArray[np.int64], Array("int64", (1, "llama_tokens"), _IDS.format("LLaMA"))]
    clip_ids: Annotated[NDArray[np.int64], Array("int64", (1, "clip_tokens"), _IDS.format("CLIP"))]


@dataclass(frozen=True)
class TokensRequest(Request):
    """Tokenize a prompt.

    Attributes:
        prompt: Prompt of an :class:`ImageToVideoRequest`.
    """

    model: ClassVar[str] = "framepack_i2v_tokenizer"
    events: ClassVar[tuple[type[Event], ...]] = (PromptTokens,)
    streams: ClassVar[bool] = False

    prompt: Annotated[str, _SOME_PROMPT]
