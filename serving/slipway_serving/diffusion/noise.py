"""Seeded noise from a CPU generator, as diffusers makes it: a seed means the same on every device."""

from __future__ import annotations

import torch


class Noise:
    """Standard normal numbers of one seed, which go on from call to call and so over the blocks of a session.

    Args:
        seed: 0 to 2**32 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator("cpu").manual_seed(seed)

    def next(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the next numbers, float32."""
        return torch.randn(shape, generator=self._generator, dtype=torch.float32)


def make_noise(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the first numbers of a seed, float32: the initial latents of one piece of work."""
    return Noise(seed).next(shape)
