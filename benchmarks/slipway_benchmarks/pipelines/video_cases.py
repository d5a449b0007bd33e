"""Named cases of the video benchmark: requests that others measure too, and what the checkpoint must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from slipway_client import TextToVideoRequest
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_serving.protocol.errors import InvalidRequest, raise_all


@dataclass(frozen=True)
class VideoCase:
    """A named case.

    Attributes:
        name: Name of the case.
        width: Width of the video, in pixels.
        height: Height of the video, in pixels.
        frames: Number of frames.
        steps: Number of denoising steps.
        guidance_scale: Guidance scale of the high-noise denoiser.
        guidance_scale_2: Guidance scale of the low-noise denoiser.
        boundary_ratio: Share of the noise schedule below which the low-noise denoiser takes over. It is a
            property of the checkpoint.
        seed: Seed of the noise.
    """

    name: str
    width: int
    height: int
    frames: int
    steps: int
    guidance_scale: float
    guidance_scale_2: float
    boundary_ratio: float
    seed: int

    @property
    def text(self) -> str:
        """The case in words."""
        return (
            f"{self.width}x{self.height}, {self.frames} frames, {self.steps} steps, guidance"
            f" {self.guidance_scale:g} and {self.guidance_scale_2:g}, boundary {self.boundary_ratio:g}, seed"
            f" {self.seed}"
        )

    def request(self, plain: TextToVideoRequest, given: Mapping[str, Any]) -> TextToVideoRequest:
        """Return a request of this case.

        Args:
            plain: Request with the fields that the case leaves open.
            given: Options of the user by flag; None for an option that was left out.

        Raises:
            InvalidRequest: An option contradicts the case. The message names each such option.
        """
        fixed = {"size": f"{self.width}x{self.height}", "frames": self.frames, "steps": self.steps}
        raise_all(
            "bench",
            [
                f"{flag} must be {fixed[flag]} with --case {self.name}, or left out, got {value}"
                for flag, value in given.items()
                if value is not None and value != fixed[flag]
            ],
        )
        return replace(
            plain,
            width=self.width,
            height=self.height,
            frames=self.frames,
            steps=self.steps,
            guidance_scale=self.guidance_scale,
            guidance_scale_2=self.guidance_scale_2,
            seed=self.seed,
        )

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint that does not have the boundary of the case.

        Raises:
            InvalidRequest: The boundary differs, or there is none.
        """
        found = checkpoint.config("model_index.json").get("boundary_ratio")
        if found != self.boundary_ratio:
            raise InvalidRequest(
                f"checkpoint {checkpoint.source}: boundary_ratio must be {self.boundary_ratio:g} for case"
                f" {self.name}, got {found}"
            )


CASES: Mapping[str, VideoCase] = {
    case.name: case
    for case in (
        # Text to video with Wan2.2-T2V-A14B in MLPerf Inference.
        VideoCase("mlperf-wan2.2", 1280, 720, 81, 20, 4.0, 3.0, 0.875, 42),
    )
}


def case_named(name: str) -> VideoCase:
    """Return a case.

    Raises:
        InvalidRequest: There is no case of this name. The message lists all.
    """
    if name not in CASES:
        raise InvalidRequest(f"bench: case must be one of {', '.join(CASES)}, got {name}")
    return CASES[name]
