"""Transformer inputs for the training on one section of a clip, in either order.

The classes that serve requests also compute the indices, the history and its blank parts here. The history is
degraded at times, since in serving the transformer generates it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slipway_export.families.framepack_i2v.family import CLEAN_FRAMES, HISTORY_2X_FRAMES, HISTORY_4X_FRAMES
from slipway_loadtests.pictures.long_footage import SECTIONS
from slipway_serving.families.framepack_i2v.request import FRAMES_PER_LATENT, SECTION_FRAMES
from slipway_serving.families.framepack_i2v.sections import Forward, Inverted, Sections, Sizes

SIZES = Sizes(SECTION_FRAMES, CLEAN_FRAMES - 1, HISTORY_2X_FRAMES, HISTORY_4X_FRAMES, FRAMES_PER_LATENT)
_ORDERS: tuple[type[Sections], ...] = (Forward, Inverted)
# Largest noise on latents of variance 1, and largest share of blur with their neighbours.
_WORN_NOISE, _WORN_BLUR = 0.25, 0.5


@dataclass(frozen=True)
class Section:
    """Section to generate, with the state of its video.

    Args:
        order: Order in which sections are generated.
        count: Number of sections of the video, 1 to `SECTIONS`.
        made: Number of sections that are generated before it.
    """

    order: type[Sections]
    count: int
    made: int

    @property
    def first(self) -> int:
        """Return the index of its first latent frame; the picture has index 0."""
        before = self.made if self.order is Forward else self.count - 1 - self.made
        return 1 + before * SIZES.section


def random_section(random: np.random.Generator) -> Section:
    """Draw a section in a random order, with equal chances for each section of the video."""
    order = _ORDERS[int(random.integers(len(_ORDERS)))]
    count = SECTIONS if order is Forward else int(random.integers(1, SECTIONS + 1))
    return Section(order, count, int(random.integers(count)))


def own_latents(latents: Tensor, section: Section) -> Tensor:
    """Return a section's latents from those of clips, [batch, channels, 37, height, width]."""
    return latents[:, :, section.first : section.first + SIZES.section]


def surroundings(latents: Tensor, section: Section, *, worn: bool) -> dict[str, Tensor]:
    """Return the transformer's inputs for a section's surroundings, by input name.

    Args:
        latents: Latents of clips, [batch, channels, 37, height, width].
        section: Section to generate.
        worn: True to add noise and blur to the history in some of the clips, by torch's generator.
    """
    seen = _worn(latents) if worn else latents
    # The picture is always clean.
    seen = torch.cat([latents[:, :, :1], seen[:, :, 1:]], dim=2)
    video = section.order(latents[:, :, :1].numpy(), section.count, SIZES)
    video.finished = section.made
    if section.order is Forward:
        known = seen[:, :, : section.first][:, :, -SIZES.history :].numpy()
        video.history[:, :, SIZES.history - known.shape[2] :] = known
    else:
        end = 1 + section.count * SIZES.section
        known = seen[:, :, section.first + SIZES.section : end][:, :, : SIZES.history].numpy()
        video.history[:, :, : known.shape[2]] = known
    return {name: torch.from_numpy(value) for name, value in video.conditions().items()}


def _worn(latents: Tensor) -> Tensor:
    """Blur latents and add noise in half of the clips, and leave the others unchanged."""
    strength = (2 * torch.rand(len(latents), 1, 1, 1, 1) - 1).clamp_min(0)
    blurred = functional.avg_pool3d(latents, (1, 3, 3), stride=1, padding=(0, 1, 1), count_include_pad=False)
    share = _WORN_BLUR * strength * torch.rand(len(latents), 1, 1, 1, 1)
    return torch.lerp(latents, blurred, share) + _WORN_NOISE * strength * torch.randn_like(latents)
