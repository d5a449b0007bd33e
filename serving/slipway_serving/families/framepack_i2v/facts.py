"""Facts about FramePack's exported graphs that serving needs: ``pipeline.json``, written by the export.

All graphs take and return latents in the transformer's scale; the VAE's graphs include its scaling factor. A
video is generated in sections of `section_frames` latent frames, each with 1 + 2 + 16 latent frames of
history, and decoded in overlapping tiles (:class:`Tiles`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipway_serving.runtime.json_facts import read_facts

FACTS_FILE = "pipeline.json"


@dataclass(frozen=True)
class Prompt:
    """Parameters of the prompt's tokenization.

    Attributes:
        template: Text for LLaMA, with the prompt in place of ``{}``.
        crop_start: Number of the template's tokens before the prompt; their hidden states and their places in
            the mask are cut off before the transformer.
        tokens: Largest number of tokens left after that; fewer are padded to it on the right.
        clip_tokens: Number of tokens of the prompt alone for CLIP, to which it is padded.
    """

    template: str
    crop_start: int
    tokens: int
    clip_tokens: int


@dataclass(frozen=True)
class Tiles:
    """Tiling of latent frames for decoding, as in the defaults of diffusers' VAE.

    Attributes:
        frames: Largest number of latent frames in a tile.
        stride: Latent frames between the beginnings of neighbouring tiles.
        blended: Video frames over which two tiles blend, after the first frame of the later one is dropped.
    """

    frames: int
    stride: int
    blended: int


@dataclass(frozen=True)
class Picture:
    """Preprocessing for the image encoder: resize to a square, scale to [0, 1] and normalize.

    Attributes:
        side_px: Side of the square.
        mean: Means of red, green, blue.
        std: Standard deviations of red, green, blue.
        resample: Number of PIL's resampling filter.
    """

    side_px: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: int


@dataclass(frozen=True)
class ModelNames:
    """Names of the served models that the pipeline calls."""

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
        prompt: Tokenization of the prompt.
        picture: Preprocessing for the image encoder.
        latent_channels: Channels of the latents.
        frames_per_latent: Video frames for each latent frame, except a video's first, which gives one.
        pixels_per_latent: Pixels for each latent pixel along a side.
        section_frames: Latent frames of a section; None if the export left that axis dynamic.
        clean_frames: Latent frames that a section sees in full: the picture's and the nearest of history.
        history_2x_frames: Latent frames of history seen at half size.
        history_4x_frames: Latent frames of history seen at a quarter.
        tiles: Tiling of decoding.
        scheduler: Configuration of diffusers' scheduler.
        axes: Smallest, traced and largest size of the graphs' axes, by name.
        models: Names of the served models.
        first_block_cache: True if the transformer can reuse the output of its later blocks.
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
