"""What the program knows of the checkpoint; the export writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipway_serving.runtime.json_facts import read_facts

FILE = "facts.json"


@dataclass(frozen=True)
class Facts:
    """Facts of a checkpoint.

    Args:
        channels: Number of channels of the latents.
        sample_size: Height and width of the latents, in latent pixels.
        train_steps: Number of timesteps of the training.
        beta_start: First variance of the noise schedule.
        beta_end: Last variance of the noise schedule.
    """

    channels: int
    sample_size: int
    train_steps: int
    beta_start: float
    beta_end: float

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Read the facts from a model's version folder.

        Raises:
            InvalidRequest: A fact is missing or wrong.
        """
        return read_facts(cls, folder / FILE)
