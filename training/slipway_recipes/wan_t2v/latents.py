"""Training data of the denoisers, encoded once: latents of clips on disk and the words of each clip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from numpy.typing import NDArray
from torch import Tensor

from slipway_loadtests.pictures.footage import FRAMES, SIDE_PX
from slipway_loadtests.pictures.render import render
from slipway_loadtests.pictures.scenes import Scene, Subject, random_scene
from slipway_recipes.array_cache import Arrays, kept_chunks
from slipway_recipes.causal_vae import WholeClips, latents_of
from slipway_recipes.recipe import Making

# Each chunk has its own seed, so that encoding can resume after an interruption.
_CHUNK, _BATCH = 256, 8


@dataclass(frozen=True)
class Encoded:
    """Data set of encoded clips.

    Args:
        latents: Latents, [clips, channels, latent frames, height / 8, width / 8], float16, unit variance.
        subjects: Subject of each clip.
    """

    latents: NDArray[np.float16]
    subjects: tuple[Subject, ...]

    def draw(self, random: np.random.Generator, batch: int) -> tuple[Tensor, list[Subject]]:
        """Return the latents of random clips, float32, and their subjects."""
        places = random.integers(len(self.subjects), size=batch)
        return torch.from_numpy(self.latents[places]).float(), [self.subjects[place] for place in places]


def encode_clips(vae: AutoencoderKLWan, choice: Sequence[Subject], clips: int, making: Making) -> Encoded:
    """Draw and encode clips, and resume where an earlier process of the same run stopped.

    Args:
        vae: VAE that stores the mean and deviation of its latents.
        choice: Subjects to choose from.
        clips: Smallest number of clips.
        making: Seed, threads and state folder.
    """
    torch.set_num_threads(making.threads)
    network = WholeClips(vae)
    drawn = [
        [random_scene(random, choice, FRAMES) for _ in range(_CHUNK)]
        for random in (np.random.default_rng([making.seed, chunk]) for chunk in range(-(-clips // _CHUNK)))
    ]

    def make(chunk: int) -> Arrays:
        return {"latents": _encoded(network, drawn[chunk])}

    found = kept_chunks(making.state / "latents", len(drawn), make, making.report)
    return Encoded(found["latents"], tuple(scene.subject for scenes in drawn for scene in scenes))


def _encoded(network: WholeClips, scenes: Sequence[Scene]) -> NDArray[np.float16]:
    found = []
    for first in range(0, len(scenes), _BATCH):
        clips = np.stack([render(scene, range(FRAMES), SIDE_PX) for scene in scenes[first : first + _BATCH]])
        found.append(network.form.normalize(network.vae, latents_of(network, clips)))
    return torch.cat(found).half().numpy()
