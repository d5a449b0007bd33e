"""Table cells of several benchmarks: summaries of rounds, and distances from a reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipway_benchmarks.similarity import Quality
    from slipway_benchmarks.stats import Summary


def spread(summary: Summary, digits: int = 2) -> str:
    """Return a summary as "median (min to max)"."""
    return f"{summary.median:.{digits}f} ({summary.min:.{digits}f} to {summary.max:.{digits}f})"


def quality_cells(found: Quality | None) -> Sequence[str]:
    """Return the table cells for relative L2, PSNR, SSIM and LPIPS; None stands for the reference itself."""
    if found is None:
        return ("reference", "", "", "")
    psnr = "identical" if found.psnr_db is None else f"{found.psnr_db:.1f} dB"
    lpips = "not measured" if found.lpips is None else f"{found.lpips:.4f}"
    return (f"{found.relative_l2:.1e}", psnr, f"{found.ssim:.4f}", lpips)
