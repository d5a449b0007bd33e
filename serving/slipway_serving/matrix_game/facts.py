"""What a served world must know of its exported graphs: ``facts.json``, which the export writes.

Tensors are float32 with latents of unit variance: the VAE's statistics are inside its graphs, and so is what
CLIP does to a picture. A picture is cut to the aspect of `picture_px` around its middle, resized to that with
antialiasing, and given in [-1, 1].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from slipway_serving.errors import InvalidRequest
from slipway_serving.facts import read_facts

FACTS_FILE = "facts.json"


@dataclass(frozen=True)
class Latents:
    """Of what latents a world is.

    Attributes:
        channels: of a latent pixel.
        mask_channels: of `cond_concat` before the picture's latents: 1 in the world's first latent frame, 0
            in the others.
        height: in latent pixels.
        width: in latent pixels.
        block_frames: latent frames that are denoised together.
        held_frames: latent frames before a block that its graph sees.
        positions: latent frames that have a place in a world; it ends there.
        picture_frames: latent frames that `vae_encoder` gives; the last is that of every later one.
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
    """What steers a world.

    Attributes:
        widths: values of a video frame's row, by input: `mouse_cond` where there is a mouse, `keyboard_cond`.
        before: rows that a block is told of before its first latent frame's; what lies before the world's
            first frame has that frame's row.
        rows: that a block is told of altogether.
    """

    widths: Mapping[str, int]
    before: int
    rows: int


@dataclass(frozen=True)
class ModelNames:
    """Names of the models that a world is made by, beside the graphs of its own.

    Attributes:
        image_encoder: called once for a world.
        vae_encoder: called once for a world.
        vae_decoder: whose graphs a world runs by itself, since it keeps their caches.
    """

    image_encoder: str
    vae_encoder: str
    vae_decoder: str


@dataclass(frozen=True)
class Facts:
    """Facts of a mode's checkpoint and of its exported models.

    Attributes:
        mode: universal, gta_drive or templerun.
        steps: places in the shifted table of sigmas, descending, as
            :class:`slipway_serving.diffusion.schedules.FewStep` takes them.
        timestep_shift: of that table.
        latents: sizes.
        actions: inputs.
        picture_px: height and width of the first picture, and of every frame.
        frames_per_latent: video frames of each latent frame but a world's first, which is one.
        models: names.

    Raises:
        InvalidRequest: the picture is not as large as the latents, or a block sees nothing before it.
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
        """Blocks of a world, from its beginning to its end."""
        return self.latents.positions // self.latents.block_frames

    @property
    def rebased_position(self) -> int:
        """The first place from which on no block is told apart by where it is.

        There are as many frames before it as a block sees, and the picture's latents no longer change.
        """
        sizes = self.latents
        return -(-max(sizes.held_frames, sizes.picture_frames - 1) // sizes.block_frames) * sizes.block_frames

    def frames_left(self, position: int) -> int:
        """Return how many video frames there are until the world's end, from a later block's place on."""
        blocks = (self.latents.positions - position) // self.latents.block_frames
        return blocks * self.block_frames(first=False)

    def frames(self, blocks: int) -> int:
        """Return how many video frames so many blocks are."""
        return 1 + self.frames_per_latent * (blocks * self.latents.block_frames - 1) if blocks else 0

    def block_frames(self, *, first: bool) -> int:
        """Return how many video frames a block is: a world's first, or any other."""
        return self.frames(1) if first else self.frames_per_latent * self.latents.block_frames

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Read the file that the export placed in a model's version folder; see :func:`read_facts`."""
        return read_facts(cls, folder / FACTS_FILE)

    def to_json(self) -> bytes:
        """Return the content of the file."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()
