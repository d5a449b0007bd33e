"""What is measured: the sizes of a Wan denoiser and of the video that it denoises.

A case becomes a small random checkpoint in the public layout (the `small` preset's with the case's sizes),
so it takes the loading path of a real one. Named cases keep figures comparable from one day to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipway_export.families import family_named
from slipway_serving.errors import InvalidRequest, raise_all
from slipway_serving.wan_t2v.request import FRAMES_PER_LATENT, PIXELS_PER_TOKEN, TextToVideoRequest

FAMILY = "wan_t2v"
# Channels of the latents, and pixels of the video per latent pixel.
LATENT_CHANNELS = 16
PIXELS_PER_LATENT = 8


@dataclass(frozen=True)
class DenoiserCase:
    """A denoiser and a video.

    Attributes:
        name: of the case.
        layers: transformer blocks.
        heads: attention heads.
        head_dim: width of a head, even, at least 6.
        ffn_dim: width of the feed-forward layer.
        freq_dim: width of the timestep's sinusoids, even.
        text_dim: width of the text embeddings.
        text_tokens: rows of the text embeddings.
        frames: of the video, 4k+1.
        height: pixels, a multiple of 16.
        width: pixels, a multiple of 16.
        guidance_scale: weight of the prompt; above 1 a call has both guidance branches, a batch of two.
        threads: of each engine.
        seed: of weights, noise and embeddings.

    Raises:
        InvalidRequest: naming every field that breaks its rule.
    """

    name: str
    layers: int
    heads: int
    head_dim: int
    ffn_dim: int
    freq_dim: int
    text_dim: int
    text_tokens: int
    frames: int
    height: int
    width: int
    guidance_scale: float = 4.0
    threads: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = ("layers", "heads", "ffn_dim", "text_dim", "text_tokens", "threads")
        problems = [
            f"{name} must be at least 1, got {getattr(self, name)}"
            for name in sizes
            if getattr(self, name) < 1
        ]
        if self.head_dim < 6 or self.head_dim % 2:
            problems.append(f"head_dim must be even and at least 6, got {self.head_dim}; try 64")
        if self.freq_dim < 2 or self.freq_dim % 2:
            problems.append(f"freq_dim must be even and at least 2, got {self.freq_dim}; try 256")
        raise_all("bench", problems)
        self.request(steps=1)  # Its rules are those of the video's sizes, the seed and the guidance.

    def request(self, steps: int) -> TextToVideoRequest:
        """Return the request for the case's video."""
        return TextToVideoRequest(
            prompt="", frames=self.frames, height=self.height, width=self.width, steps=steps,
            guidance_scale=self.guidance_scale, seed=self.seed,
        )  # fmt: skip

    @property
    def batch(self) -> int:
        """Rows of a call: the prompt's, and the negative prompt's with guidance."""
        return 2 if self.guidance_scale > 1 else 1

    @property
    def token_grid(self) -> tuple[int, int, int]:
        """Latent frames, rows and columns of tokens."""
        return (
            (self.frames - 1) // FRAMES_PER_LATENT + 1,
            self.height // PIXELS_PER_TOKEN,
            self.width // PIXELS_PER_TOKEN,
        )

    @property
    def tokens(self) -> int:
        """Tokens of one row of a call."""
        frames, rows, columns = self.token_grid
        return frames * rows * columns

    @property
    def latents(self) -> tuple[int, int, int, int, int]:
        """Shape of a call's latents."""
        frames, _, _ = self.token_grid
        planes = (self.height // PIXELS_PER_LATENT, self.width // PIXELS_PER_LATENT)
        return (self.batch, LATENT_CHANNELS, frames, *planes)


CASES = {
    case.name: case
    for case in (
        DenoiserCase(
            name="wan-6x8x64",
            layers=6,
            heads=8,
            head_dim=64,
            ffn_dim=2048,
            freq_dim=256,
            text_dim=256,
            text_tokens=128,
            frames=17,
            height=240,
            width=320,
        ),
    )
}


def choose_case(name: str, changes: Mapping[str, int | float | None]) -> DenoiserCase:
    """Return a named case with the fields that the user gave; its name then says which.

    Args:
        name: of the case.
        changes: by field; None leaves the case's own.

    Raises:
        InvalidRequest: there is no such case, or a field breaks its rule.
    """
    if name not in CASES:
        raise InvalidRequest(f"bench: case must be one of {', '.join(CASES)}, got {name!r}")
    case = CASES[name]
    given: dict[str, Any] = {
        field: value
        for field, value in changes.items()
        if value is not None and value != getattr(case, field)
    }
    if not given:
        return case
    changed = ", ".join(f"{field}={value}" for field, value in given.items())
    return replace(case, name=f"{name} with {changed}", **given)


def write_checkpoint(case: DenoiserCase, folder: Path) -> None:
    """Write a random checkpoint of the case's sizes in the public layout."""
    from slipway_export.modeling import wan_presets

    configs = {file: dict(config) for file, config in family_named(FAMILY).presets["small"].configs.items()}
    configs["transformer/config.json"] |= {
        "num_layers": case.layers,
        "num_attention_heads": case.heads,
        "attention_head_dim": case.head_dim,
        "ffn_dim": case.ffn_dim,
        "freq_dim": case.freq_dim,
        "text_dim": case.text_dim,
    }
    configs["text_encoder/config.json"]["d_model"] = case.text_dim
    wan_presets.write_checkpoint(folder, configs, case.seed)
