"""Benchmark cases: the sizes of a Wan denoiser and of the video that it denoises.

A case becomes a small random checkpoint in the public layout (the `small` preset with the case's sizes), so
it takes the loading path of a real one. Named cases keep figures comparable over time. The case of a
checkpoint has the checkpoint's sizes and is measured with its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families import family_named
from slipway_export.families.wan_t2v.presets import TEXT_TOKENS
from slipway_serving.families.wan_t2v.request import FRAMES_PER_LATENT, PIXELS_PER_TOKEN, TextToVideoRequest
from slipway_serving.protocol.errors import InvalidRequest, raise_all

FAMILY = "wan_t2v"
# Folder of the measured denoiser in a checkpoint, and its configuration keys by field of the case.
_PART = "transformer"
_SIZES = {
    "layers": "num_layers",
    "heads": "num_attention_heads",
    "head_dim": "attention_head_dim",
    "ffn_dim": "ffn_dim",
    "freq_dim": "freq_dim",
    "text_dim": "text_dim",
}
# Channels of the latents, and pixels of the video per latent pixel on each side.
LATENT_CHANNELS = 16
PIXELS_PER_LATENT = 8


@dataclass(frozen=True)
class DenoiserCase:
    """Sizes of a denoiser and of a video.

    Attributes:
        name: Name of the case.
        layers: Number of transformer blocks.
        heads: Number of attention heads.
        head_dim: Width of a head, even, at least 6.
        ffn_dim: Width of the feed-forward layer.
        freq_dim: Width of the timestep's sinusoids, even.
        text_dim: Width of the text embeddings.
        text_tokens: Number of rows of the text embeddings.
        frames: Number of frames of the video, 4k+1.
        height: Height in pixels, a multiple of 16.
        width: Width in pixels, a multiple of 16.
        guidance_scale: Weight of the prompt; above 1, a call has both guidance branches, a batch of two.
        threads: Number of threads of each engine.
        seed: Seed of weights, noise and embeddings.

    Raises:
        InvalidRequest: At least one field breaks its rule; the message names each.
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
        self.request(steps=1)  # The request checks the video's sizes, the seed and the guidance.

    def request(self, steps: int) -> TextToVideoRequest:
        """Return the request for the case's video."""
        return TextToVideoRequest(
            prompt="", frames=self.frames, height=self.height, width=self.width, steps=steps,
            guidance_scale=self.guidance_scale, seed=self.seed,
        )  # fmt: skip

    @property
    def batch(self) -> int:
        """Number of rows of a call: one for the prompt, and with guidance one for the negative prompt."""
        return 2 if self.guidance_scale > 1 else 1

    @property
    def token_grid(self) -> tuple[int, int, int]:
        """Number of latent frames, and of rows and columns of tokens."""
        return (
            (self.frames - 1) // FRAMES_PER_LATENT + 1,
            self.height // PIXELS_PER_TOKEN,
            self.width // PIXELS_PER_TOKEN,
        )

    @property
    def tokens(self) -> int:
        """Number of tokens in one row of a call."""
        frames, rows, columns = self.token_grid
        return frames * rows * columns

    @property
    def latents(self) -> tuple[int, int, int, int, int]:
        """Shape of a call's latents."""
        frames, _, _ = self.token_grid
        planes = (self.height // PIXELS_PER_LATENT, self.width // PIXELS_PER_LATENT)
        return (self.batch, LATENT_CHANNELS, frames, *planes)


DEFAULT_CASE = "wan-6x8x64"
CASES = {
    case.name: case
    for case in (
        DenoiserCase(
            name=DEFAULT_CASE,
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
    """Return a named case with the user's changes; the name of the result lists them.

    Args:
        name: Name of the case.
        changes: Values by field; None keeps the case's own.

    Raises:
        InvalidRequest: There is no such case, or a field breaks its rule.
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


def case_of_checkpoint(
    checkpoint: Checkpoint, changes: Mapping[str, int | float | None], case: str | None = None
) -> DenoiserCase:
    """Return a case with a checkpoint's denoiser, and a named case's video with the user's changes.

    Args:
        checkpoint: Checkpoint in the family's layout; the denoiser is its `transformer`, the first of two
            experts.
        changes: Values by field; None keeps the video of the default case, and the text tokens of the
            pipeline.
        case: Name of the user's case, which must be None with a checkpoint.

    Raises:
        InvalidRequest: The user gave a field that the checkpoint defines, or a field breaks its rule.
    """
    where = f"checkpoint {checkpoint.source}: {_PART}/config.json"
    config = checkpoint.config(f"{_PART}/config.json")
    given: dict[str, Any] = {field: value for field, value in changes.items() if value is not None}
    problems = [f"case must be left out with a checkpoint, got {case!r}"] if case is not None else []
    problems += [
        f"{field} must be left out with a checkpoint, whose own is {config.get(key)}, got {given[field]}"
        for field, key in _SIZES.items()
        if field in given
    ]
    raise_all("bench", problems)
    problems = [
        f"{key} must be a whole number, got {config.get(key)!r}"
        for key in _SIZES.values()
        if not isinstance(config.get(key), int)
    ]
    if config.get("in_channels") != LATENT_CHANNELS:
        problems.append(f"in_channels must be {LATENT_CHANNELS}, got {config.get('in_channels')!r}")
    raise_all(where, problems)
    sizes = {field: config[key] for field, key in _SIZES.items()}
    video = {"text_tokens": TEXT_TOKENS, **given}
    return replace(CASES[DEFAULT_CASE], name=f"checkpoint {checkpoint.source}", **sizes, **video)


def write_checkpoint(case: DenoiserCase, folder: Path) -> None:
    """Write a random checkpoint with the case's sizes in the public layout."""
    from slipway_export.families.wan_t2v import random_checkpoint

    configs = {file: dict(config) for file, config in family_named(FAMILY).presets["small"].configs.items()}
    configs[f"{_PART}/config.json"] |= {key: getattr(case, field) for field, key in _SIZES.items()}
    configs["text_encoder/config.json"]["d_model"] = case.text_dim
    random_checkpoint.write_checkpoint(folder, configs, case.seed)
