"""Facts about a world's exported graphs that serving needs: ``facts.json``, written by the export.

Tensors are float32 with latents of unit variance; the graphs include the VAE's statistics and CLIP's
preprocessing. A picture is cropped around its centre to the aspect of `picture_px`, resized to it with
antialiasing, and passed in [-1, 1].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.json_facts import read_facts

FACTS_FILE = "facts.json"


@dataclass(frozen=True)
class Latents:
    """Sizes of a world's latents.

    Attributes:
        channels: Channels of the latents.
        mask_channels: Mask channels of `cond_concat` before the picture's latents: 1 in the world's first
            latent frame, 0 in the others.
        height: Height in latent pixels.
        width: Width in latent pixels.
        block_frames: Latent frames that are denoised together.
        held_frames: Latent frames before a block that its graph sees.
        positions: Largest number of latent frames of a world, after which it ends.
        picture_frames: Latent frames that `vae_encoder` returns; the last one stands for all later ones.
    """

    channels: int
    mask_channels: int
    height: int
    width: int
    block_frames: int
    held_frames: int
    positions: int
    picture_frames: int


@dataclass(frozen=True)
class Actions:
    """Sizes of the actions that steer a world.

    Attributes:
        widths: Values in a video frame's row, by input: `keyboard_cond`, and `mouse_cond` if it exists.
        before: Rows before a block's first latent frame that its network takes; before the world's first
            frame, that frame's row is repeated.
        rows: Number of all rows that a block's network takes.
    """

    widths: Mapping[str, int]
    before: int
    rows: int


@dataclass(frozen=True)
class ModelNames:
    """Names of the models that a world uses beside its own graphs.

    Attributes:
        image_encoder: Model that is called once for a world.
        vae_encoder: Model that is called once for a world.
        vae_decoder: Model whose graphs the world runs in its own process, since it keeps their caches.
    """

    image_encoder: str
    vae_encoder: str
    vae_decoder: str


@dataclass(frozen=True)
class Facts:
    """Facts of a mode's checkpoint and of its exported models.

    Attributes:
        mode: Mode, "universal", "gta_drive" or "templerun".
        steps: Places in the shifted table of sigmas, descending, as
            :class:`slipway_serving.diffusion.schedules.FewStep` takes them.
        timestep_shift: Shift of that table.
        latents: Sizes of the latents.
        actions: Sizes of the actions.
        picture_px: Height and width of the first picture and of every frame.
        frames_per_latent: Video frames for each latent frame, except a world's first, which gives one.
        models: Names of the served models.

    Raises:
        InvalidRequest: The picture does not have the aspect of the latents, or a block sees no frames before
            it.
    """

    mode: str
    steps: tuple[int, ...]
    timestep_shift: float
    latents: Latents
    actions: Actions
    picture_px: tuple[int, int]
    frames_per_latent: int
    models: ModelNames

    def __post_init__(self) -> None:
        height, width = self.picture_px
        if height * self.latents.width != width * self.latents.height or self.latents.held_frames < 1:
            raise InvalidRequest(
                f"{FACTS_FILE}: picture_px must have the aspect of {self.latents.height} x"
                f" {self.latents.width} latents and held_frames be at least 1, got {height} x {width} and"
                f" {self.latents.held_frames}; try exporting again"
            )

    @property
    def blocks(self) -> int:
        """Return the number of blocks of a world, from its beginning to its end."""
        return self.latents.positions // self.latents.block_frames

    @property
    def rebased_position(self) -> int:
        """Return the first place from which on the inputs of all blocks are alike.

        A block there has as many frames before it as it sees, and the picture's latents no longer change.
        """
        sizes = self.latents
        return -(-max(sizes.held_frames, sizes.picture_frames - 1) // sizes.block_frames) * sizes.block_frames

    def frames_left(self, position: int) -> int:
        """Return the number of video frames from a later block's place to the world's end."""
        blocks = (self.latents.positions - position) // self.latents.block_frames
        return blocks * self.block_frames(first=False)

    def frames(self, blocks: int) -> int:
        """Return the number of video frames of that many blocks."""
        return 1 + self.frames_per_latent * (blocks * self.latents.block_frames - 1) if blocks else 0

    def block_frames(self, *, first: bool) -> int:
        """Return the number of video frames of a world's first block, or of any other."""
        return self.frames(1) if first else self.frames_per_latent * self.latents.block_frames

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Read the file that the export placed in a model's version folder; see :func:`read_facts`."""
        return read_facts(cls, folder / FACTS_FILE)

    def to_json(self) -> bytes:
        """Return the content of the file."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()
