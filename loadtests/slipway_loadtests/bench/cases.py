"""What is measured: the sizes of a Wan denoiser and of the video that it denoises.

A case becomes a small random checkpoint in the public layout (the `small` preset's with the case's sizes),
so it takes the loading path of a real one. Named cases keep figures comparable from one day to the next; the
case of a checkpoint has its sizes, and is measured with its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipway_export.checkpoint import Checkpoint
from slipway_export.families import family_named
from slipway_export.families.wan_t2v import TEXT_TOKENS
from slipway_serving.errors import InvalidRequest, raise_all
from slipway_serving.wan_t2v.request import FRAMES_PER_LATENT, PIXELS_PER_TOKEN, TextToVideoRequest

FAMILY = "wan_t2v"
# Folder of the measured denoiser in a checkpoint, and the entries of its configuration by the case's fields.
_PART = "transformer"
_SIZES = {
    "layers": "num_layers",
    "heads": "num_attention_heads",
    "head_dim": "attention_head_dim",
    "ffn_dim": "ffn_dim",
    "freq_dim": "freq_dim",
    "text_dim": "text_dim",
}
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


def case_of_checkpoint(
    checkpoint: Checkpoint, changes: Mapping[str, int | float | None], case: str | None = None
) -> DenoiserCase:
    """Return a case with a checkpoint's denoiser, and a named case's video with what the user gave.

    Args:
        checkpoint: in the family's layout; the denoiser is its `transformer`, of two experts the first.
        changes: by field; None leaves the video of the default case, and the text tokens of the pipeline.
        case: named by the user, which contradicts a checkpoint.

    Raises:
        InvalidRequest: a field that the checkpoint has was given, or one breaks its rule.
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
    """Write a random checkpoint of the case's sizes in the public layout."""
    from slipway_export.modeling import wan_presets

    configs = {file: dict(config) for file, config in family_named(FAMILY).presets["small"].configs.items()}
    configs[f"{_PART}/config.json"] |= {key: getattr(case, field) for field, key in _SIZES.items()}
    configs["text_encoder/config.json"]["d_model"] = case.text_dim
    wan_presets.write_checkpoint(folder, configs, case.seed)
