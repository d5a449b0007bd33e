"""Training data of the transformer, encoded once: clips' latents on disk, captions and pictures.

A clip's first latent frame is the picture, encoded alone as in serving. The others come from pieces as long
as those of the VAE's training, each of which begins with the last frame of the piece before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from slipway_loadtests.pictures.captions import caption
from slipway_loadtests.pictures.footage import SIDE_PX
from slipway_loadtests.pictures.long_footage import FRAMES, LONG
from slipway_loadtests.pictures.render import render
from slipway_loadtests.pictures.scenes import Scene, Subject
from slipway_recipes.array_cache import Arrays, kept_chunks
from slipway_recipes.causal_vae import WholeClips, latents_of
from slipway_recipes.framepack_i2v.encoders import PromptEmbeddings, clip_pooled, llama_hidden, siglip_states
from slipway_recipes.recipe import Making
from slipway_recipes.vae_forms import Vae
from slipway_serving.families.framepack_i2v.facts import Picture

# Each chunk has its own seed, so that encoding can resume after an interruption.
_CHUNK = 64
_PIECE_FRAMES = 16
# Number of captions of each clip; a step sees one of them.
_WORDINGS = 3
_BATCH = 64


@dataclass(frozen=True)
class Encoders:
    """Trained encoders with their tokenizers."""

    llama: torch.nn.Module
    clip: torch.nn.Module
    siglip: torch.nn.Module
    llama_tokenizer: PreTrainedTokenizerBase
    clip_tokenizer: PreTrainedTokenizerBase
    picture: Picture

    @torch.no_grad()
    def told(self, texts: Sequence[str]) -> PromptEmbeddings:
        """Return the embeddings of texts as the transformer takes them."""
        told = llama_hidden(self.llama, self.llama_tokenizer, texts)
        return PromptEmbeddings(told.hidden, told.mask, clip_pooled(self.clip, self.clip_tokenizer, texts))

    @torch.no_grad()
    def shown(self, pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Return the embeddings of pictures as the transformer takes them."""
        return siglip_states(self.siglip, pictures, self.picture)


@dataclass(frozen=True)
class Clips:
    """Batch of clips as the transformer sees them, with one row per clip in each tensor.

    Args:
        latents: Latents, [clips, channels, 37, height / 8, width / 8], the first frame is the picture.
        told: Embedded caption of each clip.
        image_embeds: Embeddings of the first pictures, [clips, patches, width].
    """

    latents: Tensor
    told: PromptEmbeddings
    image_embeds: Tensor


@dataclass(frozen=True)
class Encoded:
    """Data set of all encoded clips.

    Args:
        latents: Latents, [clips, channels, 37, height / 8, width / 8], float16, of variance 1.
        told: Embedded captions, one row for each wording of each clip's caption.
        image_embeds: Embeddings of the first pictures, [clips, patches, width].
    """

    latents: NDArray[np.float16]
    told: PromptEmbeddings
    image_embeds: Tensor

    def draw(self, random: np.random.Generator, batch: int) -> Clips:
        """Return random clips, float32."""
        places = random.integers(len(self.latents), size=batch)
        said = torch.from_numpy(places * _WORDINGS + random.integers(_WORDINGS, size=batch))
        told = PromptEmbeddings(self.told.hidden[said], self.told.mask[said], self.told.pooled[said])
        latents = torch.from_numpy(self.latents[places]).float()
        return Clips(latents, told, self.image_embeds[torch.from_numpy(places)])


def encode_clips(
    vae: Vae, encoders: Encoders, choice: Sequence[Subject], clips: int, making: Making
) -> Encoded:
    """Draw and encode clips, and resume where an earlier process of the same run stopped.

    Args:
        vae: VAE that stores the deviation of its latents.
        encoders: Encoders of captions and pictures.
        choice: Subjects to choose from.
        clips: Smallest number of clips.
        making: Seed, threads and state folder.
    """
    torch.set_num_threads(making.threads)
    network = WholeClips(vae)
    drawn, texts, pictures = [], [], []
    for chunk in range(-(-clips // _CHUNK)):
        random = np.random.default_rng([making.seed, chunk])
        scenes = [LONG.scene(random, choice) for _ in range(_CHUNK)]
        texts += [caption(random, scene.subject) for scene in scenes for _ in range(_WORDINGS)]
        pictures += [render(scene, range(1), SIDE_PX)[0] for scene in scenes]
        drawn.append(scenes)

    def make(chunk: int) -> Arrays:
        return {"latents": np.stack([encoded(network, scene) for scene in drawn[chunk]])}

    found = kept_chunks(making.state / "latents", len(drawn), make, making.report)
    told = [encoders.told(texts[first : first + _BATCH]) for first in range(0, len(texts), _BATCH)]
    shown = [encoders.shown(pictures[first : first + _BATCH]) for first in range(0, len(pictures), _BATCH)]
    fields = (torch.cat([getattr(each, name) for each in told]) for name in ("hidden", "mask", "pooled"))
    return Encoded(found["latents"], PromptEmbeddings(*fields), torch.cat(shown))


def encoded(network: WholeClips, scene: Scene) -> NDArray[np.float16]:
    """Return the latents of a scene's clip, [channels, 37, height / 8, width / 8]."""
    clip = render(scene, range(FRAMES), SIDE_PX)
    picture = latents_of(network, clip[None, :1])
    begins = range(0, FRAMES - 1, _PIECE_FRAMES)
    later = latents_of(network, np.stack([clip[begin : begin + _PIECE_FRAMES + 1] for begin in begins]))
    # The first latent frame of a piece is the frame that it shares with the piece before.
    latents = torch.cat([picture[0], *later[:, :, 1:]], dim=1)
    return network.form.normalize(network.vae, latents).half().numpy()
