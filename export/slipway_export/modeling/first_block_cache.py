"""What transformers that are cut for a first-block cache have in common: how much the first block changed."""

from __future__ import annotations

from torch import Tensor, nn


class Change(nn.Module):
    """How much the first block's residual differs from another step's."""

    def forward(self, residual: Tensor, cached_residual: Tensor) -> Tensor:
        """Compare two residuals, each [batch, ..., dim], float32.

        Returns:
            Mean absolute difference over mean absolute value of the cached one, [batch], float32.
        """
        axes = tuple(range(1, residual.dim()))
        change: Tensor = (residual - cached_residual).abs().mean(axes) / cached_residual.abs().mean(axes)
        return change
