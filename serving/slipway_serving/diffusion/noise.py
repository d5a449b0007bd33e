"""Seeded noise from a CPU generator, like in diffusers, so that a seed means the same on every device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


class Noise:
    """Generator of standard normal numbers that continues from call to call, over all blocks of a session.

    Args:
        seed: Seed of the generator, 0 to 2**32 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator("cpu").manual_seed(seed)

    @property
    def generator(self) -> torch.Generator:
        """Generator itself, for a scheduler that draws the noise of its own steps."""
        return self._generator

    @classmethod
    def at(cls, state: NDArray[np.uint8]) -> Noise:
        """Return a generator that continues from a :attr:`state`.

        Raises:
            ValueError: The bytes are not the state of a generator.
        """
        noise = cls(0)
        noise.restore(state)
        return noise

    def restore(self, state: NDArray[np.uint8]) -> None:
        """Continue from a :attr:`state`.

        Raises:
            ValueError: The bytes are not the state of a generator.
        """
        try:
            self._generator.set_state(torch.from_numpy(state.copy()))
        except (RuntimeError, TypeError) as error:
            raise ValueError(str(error)) from None

    @property
    def state(self) -> NDArray[np.uint8]:
        """State of the generator, as bytes."""
        found: NDArray[np.uint8] = self._generator.get_state().numpy()
        return found

    def next(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the next numbers, float32."""
        return torch.randn(shape, generator=self._generator, dtype=torch.float32)


def make_noise(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the first numbers of a seed, float32: the initial latents of a request."""
    return Noise(seed).next(shape)
