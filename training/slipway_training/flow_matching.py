"""Flow matching: noise is mixed into latents along a line, and a network learns the line's direction.

Lipman et al., "Flow Matching for Generative Modeling", https://arxiv.org/abs/2210.02747.
"""

from __future__ import annotations

from dataclasses import dataclass

from diffusers.training_utils import compute_density_for_timestep_sampling
from torch import Tensor

TRAIN_TIMESTEPS = 1000


@dataclass(frozen=True)
class Noise:
    """How much noise is mixed in: sigmas of a uniform schedule with a shift, within a range.

    Args:
        lowest: sigma, 0 to 1.
        highest: sigma, 0 to 1.
        shift: of the schedule, above 1 for more noise.
    """

    lowest: float
    highest: float
    shift: float

    def draw(self, count: int) -> Tensor:
        """Draw sigmas, [count], by torch's generator."""
        first, last = (
            sigma / (self.shift - (self.shift - 1) * sigma) for sigma in (self.lowest, self.highest)
        )
        drawn: Tensor = compute_density_for_timestep_sampling("none", count)
        places = first + (last - first) * drawn
        return self.shift * places / (1 + (self.shift - 1) * places)


def flow_loss(flow: Tensor, clean: Tensor, noise: Tensor, weights: Tensor | float = 1.0) -> Tensor:
    """Return the mean square error of a predicted flow, which leads from clean latents to noise.

    Args:
        flow: predicted, any shape.
        clean: latents of the same shape, on any device.
        noise: of the same shape.
        weights: that broadcast against it; see :func:`weights_of`.
    """
    off = (flow.float() - (noise - clean).to(flow.device)).square()
    if isinstance(weights, Tensor):
        weights = weights.to(flow.device)
    return (off * weights).mean()


def weights_of(clean: Tensor, ground: Tensor, emphasis: float) -> Tensor:
    """Return how much each place of clips counts in the loss: a shape is small, and its outline smaller.

    Args:
        clean: [batch, channels, frames, height, width], of standard deviation 1.
        ground: what lies behind what moves; broadcasts against `clean`.
        emphasis: added to the weight of 1 where the mean square difference is 1 or more.

    Returns:
        [batch, 1, frames, height, width], of mean 1 for each clip.
    """
    found = 1 + emphasis * (clean - ground).square().mean(dim=1, keepdim=True).clamp(max=1)
    weighed: Tensor = found / found.mean(dim=(1, 2, 3, 4), keepdim=True)
    return weighed


def ground_of(clean: Tensor) -> Tensor:
    """Return the ground of clips: the median of each row over width and time.

    Args:
        clean: [batch, channels, frames, height, width].

    Returns:
        [batch, channels, 1, height, 1].
    """
    rows = clean.transpose(2, 3).flatten(3)
    return rows.median(dim=3).values[:, :, None, :, None]
