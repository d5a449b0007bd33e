"""What a caller may ask of the model wan_t2v: one frozen dataclass, every rule written beside its field.

The client builds it from a command line or from code, its tensors cross Triton, the pipeline gets an equal
one. What depends on the exported models (sizes, a second denoiser) is checked by the pipeline against its
:class:`Limits`. Values are refused, never clamped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from slipway_serving.errors import raise_all
from slipway_serving.events import Event, FramesPart, Progress, VideoPart
from slipway_serving.fields import Rule
from slipway_serving.requests import Request

OUTPUTS = ("video", "video_base64", "frames", "frames_base64")
MAX_PROMPT_CHARACTERS = 16_384
MAX_STEPS = 100
MAX_FPS = 120
MAX_SEED = 2**32 - 1
# A latent pixel is 8 pixels wide and the denoiser's patch 2 latent pixels; a latent frame is 4 frames.
PIXELS_PER_TOKEN = 16
FRAMES_PER_LATENT = 4


@dataclass(frozen=True)
class Limits:
    """What the exported models can do.

    Attributes:
        frames: smallest and largest number of frames.
        height: smallest and largest height, pixels.
        width: smallest and largest width, pixels.
        two_experts: whether there is a low-noise denoiser beside the high-noise one.
        first_block_cache: whether the denoisers can reuse what their later blocks gave.
    """

    frames: tuple[int, int]
    height: tuple[int, int]
    width: tuple[int, int]
    two_experts: bool
    first_block_cache: bool = False


def _nearest(value: int, step: int, first: int) -> str:
    return str(max(first, first + round((value - first) / step) * step)) if abs(value) < 10**9 else str(first)


def _clamped(value: int, low: int, high: int) -> str:
    return str(min(max(value, low), high))


def _finite_from_zero(value: float) -> bool:
    return bool(np.isfinite(_as_float32(value)) and value >= 0)


def _finite_above_zero(value: float) -> bool:
    return bool(np.isfinite(_as_float32(value)) and _as_float32(value) > 0)


def _as_float32(value: float) -> np.float32:
    """Return what will cross Triton: a number too large for float32 is infinite there."""
    try:
        with np.errstate(over="ignore"):
            return np.float32(value)
    except OverflowError:
        return np.float32(np.inf)


def _text_rule(help_text: str) -> Rule:
    return Rule(
        f"at most {MAX_PROMPT_CHARACTERS} characters",
        lambda text: len(text) <= MAX_PROMPT_CHARACTERS,
        lambda _: "a shorter text",
        help_text,
        shown=lambda text: f"{len(text)} characters",
    )


def _size_rule(side: str) -> Rule:
    return Rule(
        f"a multiple of {PIXELS_PER_TOKEN} above 0",
        lambda pixels: pixels > 0 and pixels % PIXELS_PER_TOKEN == 0,
        lambda pixels: _nearest(pixels, PIXELS_PER_TOKEN, PIXELS_PER_TOKEN),
        f"{side} of the video, pixels, a multiple of {PIXELS_PER_TOKEN}",
    )


def _range_rule(low: int, high: int, help_text: str) -> Rule:
    return Rule(
        f"{low} to {high}",
        lambda value: low <= value <= high,
        lambda value: _clamped(value, low, high),
        f"{help_text}, {low} to {high}",
    )


def _share_rule(help_text: str) -> Rule:
    return Rule("0 to 1", lambda share: 0 <= share <= 1, lambda _: "0.0 or 1.0", f"{help_text}, 0 to 1")


PROMPT_RULE = _text_rule("what the video shows")
_NEGATIVE_PROMPT = _text_rule("what the video should not show")
_FRAMES = Rule(
    f"{FRAMES_PER_LATENT}k+1 and at least 1",
    lambda frames: frames >= 1 and frames % FRAMES_PER_LATENT == 1,
    lambda frames: _nearest(frames, FRAMES_PER_LATENT, 1),
    f"number of frames, {FRAMES_PER_LATENT}k+1",
)
_HEIGHT = _size_rule("height")
_WIDTH = _size_rule("width")
_STEPS = _range_rule(1, MAX_STEPS, "denoising steps")
_GUIDANCE = Rule(
    "finite and at least 0", _finite_from_zero, lambda _: "4.0", "weight of the prompt, 1 is off"
)
_GUIDANCE_2 = Rule("finite and at least 0", _finite_from_zero, lambda _: "3.0", "weight at low noise")
_GUIDANCE_START = _share_rule("share of the steps before guidance sets in")
_GUIDANCE_STOP = _share_rule("share of the steps after which guidance ends")
_CACHE_THRESHOLD = Rule(
    "finite and at least 0",
    _finite_from_zero,
    lambda _: "0.05",
    "relative change of the first block below which the others are not computed anew",
)
_FLOW_SHIFT = Rule("finite and above 0", _finite_above_zero, lambda _: "5.0", "shift of the noise schedule")
_FPS = _range_rule(1, MAX_FPS, "frames per second")
_SEED = _range_rule(0, MAX_SEED, "seed of the noise")
_OUTPUT = Rule(
    f"one of {', '.join(OUTPUTS)}",
    OUTPUTS.__contains__,
    lambda _: OUTPUTS[0],
    "form of the result",
    flag=None,
)
_PREVIEW = Rule(
    "true or false", lambda _: True, lambda _: "false", "send a small picture after each step", flag=None
)
_TIMEOUT = Rule(
    "finite and above 0", _finite_above_zero, lambda _: "600.0", "time limit, seconds", flag="timeout"
)


@dataclass(frozen=True)
class TextToVideoRequest(Request):
    """A video to be generated from a text.

    Attributes:
        prompt: what the video shows; may be empty, at most 512 tokens.
        negative_prompt: what it should not show; used with guidance only.
        frames: number of frames, 4k+1.
        height: pixels, a multiple of 16.
        width: pixels, a multiple of 16.
        steps: denoising steps, 1 to 100.
        guidance_scale: weight of the prompt against the negative prompt; 1 or less turns guidance off.
        guidance_scale_2: the same for the low-noise denoiser; None takes guidance_scale.
        guidance_start: share of the steps before guidance sets in; until then the negative prompt is not
            computed.
        guidance_stop: share of the steps after which guidance ends; above guidance_start.
        cache_threshold: relative change of the denoiser's first block up to which its other blocks are not
            computed anew; None computes every block of every step.
        flow_shift: shift of the noise schedule; None takes the checkpoint's.
        fps: frames per second of the video file.
        seed: of the noise; the same seed gives the same video.
        output: "video" (MP4), "video_base64" (MP4 as text, for HTTP), "frames" (uint8 arrays) or
        "frames_base64". preview: whether each progress response carries a small picture of the latents.
        timeout_s: give up after this many seconds; None never does.

    Raises:
        InvalidRequest: naming every field that breaks its rule.
    """

    model: ClassVar[str] = "wan_t2v"
    events: ClassVar[tuple[type[Event], ...]] = (Progress, FramesPart, VideoPart)

    prompt: Annotated[str, PROMPT_RULE]
    negative_prompt: Annotated[str, _NEGATIVE_PROMPT] = ""
    frames: Annotated[int, _FRAMES] = 81
    height: Annotated[int, _HEIGHT] = 480
    width: Annotated[int, _WIDTH] = 832
    steps: Annotated[int, _STEPS] = 40
    guidance_scale: Annotated[float, _GUIDANCE] = 4.0
    guidance_scale_2: Annotated[float | None, _GUIDANCE_2] = None
    guidance_start: Annotated[float, _GUIDANCE_START] = 0.0
    guidance_stop: Annotated[float, _GUIDANCE_STOP] = 1.0
    cache_threshold: Annotated[float | None, _CACHE_THRESHOLD] = None
    flow_shift: Annotated[float | None, _FLOW_SHIFT] = None
    fps: Annotated[int, _FPS] = 16
    seed: Annotated[int, _SEED] = 0
    output: Annotated[str, _OUTPUT] = "video"
    preview: Annotated[bool, _PREVIEW] = False
    timeout_s: Annotated[float | None, _TIMEOUT] = None

    def result_shape(self) -> tuple[int, int, int, int]:
        """Return the shape of all frames."""
        return self.frames, self.height, self.width, 3

    def conflicts(self) -> list[str]:
        """Return what the scales of guidance break together, and its start and stop."""
        problems = []
        if self.guidance_scale <= 1 and self.guidance_scale_2 is not None and self.guidance_scale_2 > 1:
            problems.append(
                "guidance_scale_2 must be at most 1 when guidance_scale turns guidance off "
                f"({self.guidance_scale}), got {self.guidance_scale_2}; try leaving it out"
            )
        if self.guidance_start >= self.guidance_stop:
            problems.append(
                f"guidance_start must be below guidance_stop ({self.guidance_stop}), "
                f"got {self.guidance_start}; try 0.0, or guidance_scale 1.0 for no guidance at all"
            )
        return problems

    @property
    def guided_steps(self) -> range:
        """The steps with guidance, counted from 0, as diffusers' guiders count them; empty without."""
        if self.guidance_scale <= 1:
            return range(0)
        return range(int(self.guidance_start * self.steps), int(self.guidance_stop * self.steps))

    def check_against(self, limits: Limits) -> None:
        """Check what depends on the exported models.

        Args:
            limits: of the models beside the pipeline.

        Raises:
            InvalidRequest: naming every field out of range, guidance_scale_2 without a second denoiser, and
                cache_threshold without denoisers that can reuse.
        """
        asked = {
            "frames": (self.frames, limits.frames, ""),
            "height": (self.height, limits.height, " px"),
            "width": (self.width, limits.width, " px"),
        }
        problems = [
            f"{name} must be {low} to {high}{unit}, the range of the exported models, got {value}; "
            f"try {_clamped(value, low, high)}"
            for name, (value, (low, high), unit) in asked.items()
            if not low <= value <= high
        ]
        if self.guidance_scale_2 is not None and not limits.two_experts:
            problems.append(
                f"guidance_scale_2 must be left out for a checkpoint with one denoiser, "
                f"got {self.guidance_scale_2}; try guidance_scale alone"
            )
        if self.cache_threshold is not None and not limits.first_block_cache:
            problems.append(
                "cache_threshold must be left out for denoisers that were exported without a cache, "
                f"got {self.cache_threshold}; try exporting with --variant first-block-cache"
            )
        raise_all(self.model, problems)
