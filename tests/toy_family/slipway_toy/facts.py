"""What the programs of the family know of its networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.schedules import FewStep
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.json_facts import read_facts
from slipway_toy.request import BLOCK_FRAMES, PIXELS_PER_LATENT


@dataclass(frozen=True)
class Facts:
    """What the export says of the networks."""

    axes: dict[str, list[int]]
    channels: int
    dim: int
    window_frames: int
    steps: tuple[int, ...]
    shift: float

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Read the facts from a model's version folder.

        Raises:
            InvalidRequest: A fact is missing or wrong.
        """
        facts = read_facts(cls, folder / "facts.json")
        # The first request must not be the first to try the steps of the facts.
        facts.schedule(Noise(0))
        return facts

    def schedule(self, noise: Noise) -> FewStep:
        """Return a schedule for one block."""
        return FewStep(self.steps, self.shift, noise)

    def block_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return the shape of a block's latents of the given sides."""
        return (1, self.channels, BLOCK_FRAMES, height, width)

    def window_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return the shape of the keys, and of the values, of the blocks before one."""
        return (1, (self.window_frames - BLOCK_FRAMES) * height * width, self.dim)

    def check_size(self, shape: tuple[int, ...], where: str) -> None:
        """Check the size of a picture, [height, width, 3].

        Raises:
            InvalidRequest: A side is outside of the exported range.
        """
        for side, size in zip(("height", "width"), shape, strict=False):
            low, _, high = (PIXELS_PER_LATENT * tokens for tokens in self.axes[side])
            if not low <= size <= high:
                raise InvalidRequest(
                    f"{where}: image must be {low} to {high} px in {side}, as exported, got {size}"
                )
