"""What the transformer sees of a clip when it makes one of its sections, in either order.

The indices, the history and what is blank of it are told by the very classes that serve. History is worn at
times, since in serving it is the transformer's own work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slipway_export.families.framepack_i2v import CLEAN_FRAMES, HISTORY_2X_FRAMES, HISTORY_4X_FRAMES
from slipway_serving.framepack_i2v.request import FRAMES_PER_LATENT, SECTION_FRAMES
from slipway_serving.framepack_i2v.sections import Forward, Inverted, Sections, Sizes
from slipway_training.framepack_i2v.footage import SECTIONS

SIZES = Sizes(SECTION_FRAMES, CLEAN_FRAMES - 1, HISTORY_2X_FRAMES, HISTORY_4X_FRAMES, FRAMES_PER_LATENT)
_ORDERS: tuple[type[Sections], ...] = (Forward, Inverted)
# Of latents of variance 1: noise, and the share of their mean with their neighbours, at most.
_WORN_NOISE, _WORN_BLUR = 0.25, 0.5


@dataclass(frozen=True)
class Section:
    """A section of a video under way.

    Args:
        order: of making.
        count: sections of the video, 1 to `SECTIONS`.
        made: those that are made before it.
    """

    order: type[Sections]
    count: int
    made: int

    @property
    def first(self) -> int:
        """Its first latent frame; the picture's is 0."""
        before = self.made if self.order is Forward else self.count - 1 - self.made
        return 1 + before * SIZES.section


def random_section(random: np.random.Generator) -> Section:
    """Draw a section of either order, as often of the first ones as of the last."""
    order = _ORDERS[int(random.integers(len(_ORDERS)))]
    count = SECTIONS if order is Forward else int(random.integers(1, SECTIONS + 1))
    return Section(order, count, int(random.integers(count)))


def own_latents(latents: Tensor, section: Section) -> Tensor:
    """Return a section's latents, of those of clips [batch, channels, 37, height, width]."""
    return latents[:, :, section.first : section.first + SIZES.section]


def surroundings(latents: Tensor, section: Section, *, worn: bool) -> dict[str, Tensor]:
    """Return what the transformer is told of a section's surroundings, by its inputs' names.

    Args:
        latents: of clips, [batch, channels, 37, height, width].
        section: which.
        worn: whether history is noisy and blurred in some of the clips, by torch's generator.
    """
    seen = _worn(latents) if worn else latents
    # The picture is always its own.
    seen = torch.cat([latents[:, :, :1], seen[:, :, 1:]], dim=2)
    video = section.order(latents[:, :, :1].numpy(), section.count, SIZES)
    video.made = section.made
    if section.order is Forward:
        known = seen[:, :, : section.first][:, :, -SIZES.history :].numpy()
        video.history[:, :, SIZES.history - known.shape[2] :] = known
    else:
        end = 1 + section.count * SIZES.section
        known = seen[:, :, section.first + SIZES.section : end][:, :, : SIZES.history].numpy()
        video.history[:, :, : known.shape[2]] = known
    return {name: torch.from_numpy(value) for name, value in video.conditions().items()}


def _worn(latents: Tensor) -> Tensor:
    """Blur and put noise on latents, in half of the clips not at all."""
    strength = (2 * torch.rand(len(latents), 1, 1, 1, 1) - 1).clamp_min(0)
    blurred = functional.avg_pool3d(latents, (1, 3, 3), stride=1, padding=(0, 1, 1), count_include_pad=False)
    share = _WORN_BLUR * strength * torch.rand(len(latents), 1, 1, 1, 1)
    return torch.lerp(latents, blurred, share) + _WORN_NOISE * strength * torch.randn_like(latents)
