"""Mean and standard deviation of the latents of Wan's VAEs, which the files of their authors do not state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# `Wan2_2_VAE` in wan/modules/vae2_2.py of Wan-Video/Wan2.2. diffusers has those for 16 channels as defaults.
_MEAN_48 = (
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813, 0.0891,
    0.1570, -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502,
    -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230, -0.0313, -0.1649, 0.0117, 0.0723,
    -0.2839, -0.2083, -0.0520, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667,
)  # fmt: skip
_STD_48 = (
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
    0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
    0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744,
)  # fmt: skip
_KNOWN: Mapping[int, dict[str, Sequence[float]]] = {
    16: {},
    48: {"latents_mean": _MEAN_48, "latents_std": _STD_48},
}


def latent_scale(channels: int, stated: Mapping[str, Any]) -> dict[str, list[float]] | None:
    """Return the entries of a VAE's configuration for the scale of its latents; None if it is not known.

    Args:
        channels: Number of latent channels.
        stated: Configuration of a VAE beside the file or of the checkpoint, which comes first if it has as
            many channels.
    """
    names = ("latents_mean", "latents_std")
    if all(isinstance(stated.get(name), list) and len(stated[name]) == channels for name in names):
        return {name: list(stated[name]) for name in names}
    known = _KNOWN.get(channels)
    return None if known is None else {name: list(values) for name, values in known.items()}
