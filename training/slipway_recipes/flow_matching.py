"""Flow matching: a network learns the direction of the line from clean latents to noise.

Lipman et al., "Flow Matching for Generative Modeling", https://arxiv.org/abs/2210.02747.
"""

from __future__ import annotations

from dataclasses import dataclass

from diffusers.training_utils import compute_density_for_timestep_sampling
from torch import Tensor

TRAIN_TIMESTEPS = 1000


@dataclass(frozen=True)
class Noise:
    """Range and shift of the noise levels (sigmas) that training draws.

    Args:
        lowest: Smallest sigma, 0 to 1.
        highest: Largest sigma, 0 to 1.
        shift: Shift of the uniform schedule, above 1 for more noise.
    """

    lowest: float
    highest: float
    shift: float

    def draw(self, count: int) -> Tensor:
        """Draw sigmas, [count], from torch's generator."""
        first, last = (
            sigma / (self.shift - (self.shift - 1) * sigma) for sigma in (self.lowest, self.highest)
        )
        drawn: Tensor = compute_density_for_timestep_sampling("none", count)
        places = first + (last - first) * drawn
        return self.shift * places / (1 + (self.shift - 1) * places)


def flow_loss(flow: Tensor, clean: Tensor, noise: Tensor, weights: Tensor | float = 1.0) -> Tensor:
    """Return the mean squared error of a predicted flow, whose target is noise minus clean latents.

    Args:
        flow: Predicted flow, any shape.
        clean: Clean latents of the same shape, on any device.
        noise: Noise of the same shape.
        weights: Weights of the squared error that broadcast against it; see :func:`weights_of`.
    """
    off = (flow.float() - (noise - clean).to(flow.device)).square()
    if isinstance(weights, Tensor):
        weights = weights.to(flow.device)
    return (off * weights).mean()


def weights_of(clean: Tensor, ground: Tensor, emphasis: float) -> Tensor:
    """Return loss weights that emphasize places where clips differ from their ground.

    A shape is small beside its ground, and its outline is smaller still.

    Args:
        clean: Clips, [batch, channels, frames, height, width], of standard deviation 1.
        ground: Background behind the moving shape; broadcasts against `clean`.
        emphasis: Amount added to the weight of 1 at places with a mean squared difference of 1 or more.

    Returns:
        Weights, [batch, 1, frames, height, width], with mean 1 for each clip.
    """
    found = 1 + emphasis * (clean - ground).square().mean(dim=1, keepdim=True).clamp(max=1)
    weighed: Tensor = found / found.mean(dim=(1, 2, 3, 4), keepdim=True)
    return weighed


def ground_of(clean: Tensor) -> Tensor:
    """Return the ground of clips: the median of each row over width and time.

    Args:
        clean: Clips, [batch, channels, frames, height, width].

    Returns:
        Ground, [batch, channels, 1, height, 1].
    """
    rows = clean.transpose(2, 3).flatten(3)
    return rows.median(dim=3).values[:, :, None, :, None]
