"""Network that measures the change of the first block, common to all first-block caches."""

from __future__ import annotations

from torch import Tensor, nn


class Change(nn.Module):
    """Network that compares the first block's residual with that of another step."""

    def forward(self, residual: Tensor, cached_residual: Tensor) -> Tensor:
        """Compare two residuals, each [batch, ..., dim], float32.

        Returns:
            Mean absolute difference divided by the mean absolute cached residual, [batch], float32.
        """
        axes = tuple(range(1, residual.dim()))
        change: Tensor = (residual - cached_residual).abs().mean(axes) / cached_residual.abs().mean(axes)
        return change
