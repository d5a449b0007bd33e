"""What a served FramePack must know of its exported graphs: ``pipeline.json``, which the export writes.

Latents at the edges of all graphs are as the transformer has them: the VAE's scaling factor is in its graphs.
A video is made in sections of `section_frames` latent frames, each with 1 + 2 + 16 latent frames of history;
it is decoded in tiles that overlap (:class:`Tiles`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipway_serving.facts import read_facts

FACTS_FILE = "pipeline.json"


@dataclass(frozen=True)
class Prompt:
    """How a prompt becomes tokens.

    Attributes:
        template: what LLaMA reads, with the prompt in place of ``{}``.
        crop_start: tokens of the template before the prompt; their hidden states, and their places in the
            mask, are cut off before the transformer.
        tokens: that are left after that at most, padded to so many on the right.
        clip_tokens: of the prompt alone for CLIP, padded to so many.
    """

    template: str
    crop_start: int
    tokens: int
    clip_tokens: int


@dataclass(frozen=True)
class Tiles:
    """How latent frames are decoded, as diffusers' VAE does it by default.

    Attributes:
        frames: latent frames of a tile at most.
        stride: latent frames from a tile's begin to the next one's.
        blended: video frames that two tiles blend over, after the first frame of the later one is dropped.
    """

    frames: int
    stride: int
    blended: int


@dataclass(frozen=True)
class Picture:
    """What the image encoder takes: resized to a square, scaled to [0, 1] and normalized.

    Attributes:
        side_px: of the square.
        mean: of red, green, blue.
        std: of red, green, blue.
        resample: number of PIL's filter.
    """

    side_px: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: int


@dataclass(frozen=True)
class ModelNames:
    """Names of the models that a video is made by."""

    transformer: str
    llama_text: str
    clip_text: str
    siglip_image: str
    vae_encoder: str
    vae_decoder: str
    tokenizer: str


@dataclass(frozen=True)
class Facts:
    """Facts of a FramePack checkpoint and of its exported models.

    Attributes:
        prompt: its tokens.
        picture: for the image encoder.
        latent_channels: of a latent pixel.
        frames_per_latent: video frames of each latent frame but a video's first, which is one.
        pixels_per_latent: along a side.
        section_frames: latent frames of a section; None where the export left them free.
        clean_frames: latent frames that a section sees in full: the picture's and the nearest of history.
        history_2x_frames: latent frames of history seen at half size.
        history_4x_frames: latent frames of history seen at a quarter.
        tiles: of decoding.
        scheduler: configuration of diffusers' scheduler.
        axes: smallest, traced and largest size of the graphs' axes, by name.
        models: names.
        first_block_cache: whether the transformer can reuse what its later blocks gave.
    """

    prompt: Prompt
    picture: Picture
    latent_channels: int
    frames_per_latent: int
    pixels_per_latent: int
    section_frames: int | None
    clean_frames: int
    history_2x_frames: int
    history_4x_frames: int
    tiles: Tiles
    scheduler: Mapping[str, Any]
    axes: Mapping[str, tuple[int, int, int]]
    models: ModelNames
    first_block_cache: bool = False

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Read the file that the export placed in a model's version folder; see :func:`read_facts`."""
        return read_facts(cls, folder / FACTS_FILE)

    def to_json(self) -> bytes:
        """Return the content of the file."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()
