"""Requests of the model wan_t2v and of its denoisers, with a rule for each field.

The client builds a request from a command line or from code, Triton transports its tensors, and the pipeline
builds an equal request from them. The pipeline checks what depends on the exported models (sizes, a second
denoiser) against its :class:`Limits`. Invalid values are refused, never clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.diffusion.guidance import guided_steps, interval_problems
from slipway_serving.protocol.diffusion.fields import (
    CacheThreshold,
    FlowShift,
    GuidanceScale,
    GuidanceStart,
    GuidanceStop,
    Seed,
    Steps,
    TimeoutS,
    cache_problems,
    prompt_rule,
    scale_rule,
)
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.errors import raise_all
from slipway_serving.protocol.events import Event, FramesPart, Progress, VideoPart, output_field
from slipway_serving.protocol.fields import Array, Image
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.rules import export_range_problems, one_more_than_multiple
from slipway_serving.protocol.video.fields import Fps, Output, Preview, side_rule

# A latent pixel is 8 pixels wide and the denoiser's patch 2 latent pixels; a latent frame is 4 frames.
PIXELS_PER_TOKEN = 16
FRAMES_PER_LATENT = 4


def listed_defaults(steps: Sequence[int]) -> dict[str, int | float]:
    """Return the default fields of requests to a network for few steps: as many, and no guidance.

    Such a network is distilled together with its guidance, so that guidance blurs its videos.
    """
    return {"steps": len(steps), "guidance_scale": 1.0} if steps else {}


@dataclass(frozen=True)
class Limits:
    """Limits of requests that follow from the exported models.

    Attributes:
        frames: Smallest and largest number of frames.
        height: Smallest and largest height, in pixels.
        width: Smallest and largest width, in pixels.
        two_experts: True if there is a low-noise denoiser beside the high-noise one.
        first_block_cache: True if the denoisers have a first-block cache.
        pixels_per_token: Side of a token, in pixels, of which height and width are multiples.
        takes_image: True if the checkpoint can begin a video with a picture.
        needs_image: True if it makes no video without a picture.
        last_images: Fewest and most last pictures of a video.
        steps_list: Timesteps of a network that takes no other number of steps; empty for any other network.
    """

    frames: tuple[int, int]
    height: tuple[int, int]
    width: tuple[int, int]
    two_experts: bool
    first_block_cache: bool = False
    pixels_per_token: int = PIXELS_PER_TOKEN
    takes_image: bool = False
    needs_image: bool = False
    last_images: tuple[int, int] = (0, 0)
    steps_list: tuple[int, ...] = ()


@dataclass(frozen=True)
class TextToVideoRequest(DenoisingRequest):
    """Generate a video from a text, or from a text and the picture that it begins with.

    Attributes:
        prompt: Description of what the video shows; may be empty, at most 512 tokens.
        negative_prompt: Description of what the video should not show; used with guidance only.
        frames: Number of frames, 4k+1.
        height: Height, in pixels, a multiple of 16, or of 32 for Wan2.2-TI2V-5B.
        width: Width, in pixels, a multiple of 16, or of 32 for Wan2.2-TI2V-5B.
        steps: Number of denoising steps, 1 to 100.
        guidance_scale: Weight of the prompt against the negative prompt; 1 or less turns guidance off.
        guidance_scale_2: Guidance scale of the low-noise denoiser; None takes guidance_scale.
        guidance_start: Share of the steps before guidance begins; until then the negative prompt is not
            computed.
        guidance_stop: Share of the steps after which guidance ends; above guidance_start.
        cache_threshold: Relative change of the denoiser's first block up to which its other blocks are
            skipped; None computes every block of every step.
        flow_shift: Shift of the noise schedule; None takes the checkpoint's.
        fps: Frames per second of the video file.
        seed: Seed of the noise; the same seed gives the same video.
        output: Form of the result: "video" (MP4), "video_base64" (MP4 as text, for HTTP), "frames" (uint8
            arrays) or "frames_base64".
        preview: True if each progress response carries a small picture of the latents.
        image: First frame for an image-to-video checkpoint; it is cropped around its centre to the video's
            aspect and resized. Wan2.2-TI2V-5B may take it, Wan2.2-I2V-A14B and image to video of Wan2.1 need
            it, others refuse it.
        last_image: Last frame, prepared as the first. Wan2.1-FLF2V needs it, Wan2.2-I2V-A14B may take it,
            others refuse it.
        timeout_s: Time limit of the request, in seconds; None sets no limit.

    Raises:
        InvalidRequest: A field breaks its rule; the message names every such field.
    """

    model: ClassVar[str] = "wan_t2v"
    events: ClassVar[tuple[type[Event], ...]] = (Progress, FramesPart, VideoPart)
    conditions: ClassVar[frozenset[str]] = frozenset(
        {
            "prompt", "negative_prompt", "guidance_scale", "guidance_scale_2", "guidance_start",
            "guidance_stop",
        }
    )  # fmt: skip

    prompt: Annotated[str, prompt_rule("text that describes the video")]
    negative_prompt: Annotated[str, prompt_rule("text that describes what the video should not show")] = ""
    frames: Annotated[int, one_more_than_multiple(FRAMES_PER_LATENT, "number of frames")] = 81
    height: Annotated[int, side_rule("height", PIXELS_PER_TOKEN)] = 480
    width: Annotated[int, side_rule("width", PIXELS_PER_TOKEN)] = 832
    steps: Steps = 40
    guidance_scale: GuidanceScale = 4.0
    guidance_scale_2: Annotated[
        float | None, scale_rule("guidance scale of the low-noise denoiser", "guidance_scale")
    ] = None
    guidance_start: GuidanceStart = 0.0
    guidance_stop: GuidanceStop = 1.0
    cache_threshold: CacheThreshold = None
    flow_shift: FlowShift = None
    fps: Fps = 16
    seed: Seed = 0
    output: Output = "video"
    preview: Preview = False
    image: Annotated[
        bytes | NDArray[np.uint8] | None,
        Image("first frame, for image-to-video checkpoints; it is cropped and resized to the video's size"),
    ] = None
    last_image: Annotated[
        bytes | NDArray[np.uint8] | None,
        Image("last frame, for checkpoints that take two; it is cropped and resized to the video's size"),
    ] = None
    timeout_s: TimeoutS = None

    def result_shape(self) -> tuple[int, int, int, int]:
        """Return the shape of all frames."""
        return self.frames, self.height, self.width, 3

    def conflicts(self) -> list[str]:
        """Return the conflicts between the guidance scales, and between start and stop of guidance."""
        problems = []
        if self.guidance_scale <= 1 and self.guidance_scale_2 is not None and self.guidance_scale_2 > 1:
            problems.append(
                "guidance_scale_2 must be at most 1 when guidance_scale turns guidance off "
                f"({self.guidance_scale}), got {self.guidance_scale_2}; try leaving it out"
            )
        return [*super().conflicts(), *problems, *interval_problems(self.guidance_start, self.guidance_stop)]

    @property
    def guided_steps(self) -> range:
        """Steps with guidance, counted from 0 like diffusers' guiders; empty without guidance."""
        return guided_steps(self.guidance_scale, self.guidance_start, self.guidance_stop, self.steps)

    def check_against(self, limits: Limits) -> None:
        """Check the fields that depend on the exported models.

        Args:
            limits: Limits of the models that the pipeline calls.

        Raises:
            InvalidRequest: A field is out of range, or the request has guidance_scale_2 without a second
                denoiser, cache_threshold without a first-block cache, a picture where the checkpoint takes
                none or none where it needs one, or another number of steps than a network that was distilled
                for its own; the message names every such field.
        """
        problems = [
            *export_range_problems("frames", self.frames, limits.frames),
            *export_range_problems("height", self.height, limits.height, " px"),
            *export_range_problems("width", self.width, limits.width, " px"),
        ]
        if self.guidance_scale_2 is not None and not limits.two_experts:
            problems.append(
                f"guidance_scale_2 must be left out for a checkpoint with one denoiser, "
                f"got {self.guidance_scale_2}; try guidance_scale alone"
            )
        problems += cache_problems(self.cache_threshold, limits.first_block_cache)
        problems += [
            f"{side} must be a multiple of {limits.pixels_per_token} for this checkpoint, got {value};"
            f" try {max(1, round(value / limits.pixels_per_token)) * limits.pixels_per_token}"
            for side, value in (("height", self.height), ("width", self.width))
            if value % limits.pixels_per_token
        ]
        if limits.steps_list and self.steps != len(limits.steps_list):
            problems.append(
                f"steps must be {len(limits.steps_list)} for this checkpoint, which was distilled for the"
                f" timesteps {', '.join(map(str, limits.steps_list))}, got {self.steps}; try"
                f" {len(limits.steps_list)}, with guidance_scale 1"
            )
        raise_all(self.model, [*problems, *self._picture_problems(limits)])

    def _picture_problems(self, limits: Limits) -> list[str]:
        """Return a sentence for each picture that the checkpoint refuses, or lacks."""
        problems = []
        if self.image is None and limits.needs_image:
            problems.append("image must be given for an image-to-video checkpoint, got none")
        if self.image is not None and not limits.takes_image:
            problems.append(
                "image must be left out for a checkpoint that makes videos from text only; try a server with"
                " Wan2.2-TI2V-5B or Wan2.2-I2V-A14B"
            )
        fewest, most = limits.last_images
        if self.last_image is None and fewest:
            problems.append("last_image must be given for a checkpoint that joins two pictures, got none")
        if self.last_image is not None and not most:
            problems.append(
                "last_image must be left out for this checkpoint, which takes no last picture; try a server"
                " with Wan2.1-FLF2V or Wan2.2-I2V-A14B"
            )
        elif self.last_image is not None and self.frames == 1:
            problems.append(
                "frames must be at least 5 with a last_image, got 1, which is the first picture; try 5"
            )
        return problems


_LATENTS = Array(
    "float32",
    ("rows", 16, "latent_frames", "latent_height", "latent_width"),
    "noisy latents, or the predicted flow",
)


@dataclass(frozen=True)
class Denoised(Event):
    """Response of a denoiser with a first-block cache.

    Attributes:
        sample: Predicted flow, shape of the latents, float32.
        cached: True if only the first block was computed.
    """

    sample: Annotated[NDArray[np.float32], _LATENTS]
    cached: Annotated[bool, output_field("true if only the first block was computed")]


@dataclass(frozen=True)
class DenoiserStep(Request):
    """One step of a denoiser, with a row for each guidance branch.

    Attributes:
        hidden_states: Noisy latents, [rows, 16, latent frames, height / 8, width / 8], float32.
        timestep: Timestep of each row, [rows, 1], float32, 0 to 1000.
        encoder_hidden_states: Embeddings of prompts, [rows, text tokens, width], float32.
        cache_threshold: Threshold as in :class:`TextToVideoRequest`; it requires a single row and a session.
    """

    model: ClassVar[str] = "wan_t2v_denoiser"

    hidden_states: Annotated[NDArray[np.float32], _LATENTS]
    timestep: Annotated[NDArray[np.float32], Array("float32", ("rows", 1), "timestep of each row")]
    encoder_hidden_states: Annotated[
        NDArray[np.float32], Array("float32", ("rows", "text_tokens", "text_width"), "embeddings of prompts")
    ]
    cache_threshold: CacheThreshold = None


@dataclass(frozen=True)
class Denoising(Request):
    """Request for steps of a denoiser with a first-block cache; a session has one guidance branch."""

    model: ClassVar[str] = "wan_t2v_denoiser"
    events: ClassVar[tuple[type[Event], ...]] = (Denoised,)
    streams: ClassVar[bool] = False
    turn: ClassVar[type[Request] | None] = DenoiserStep
