"""Distance of a result from the reference: relative L2, PSNR, SSIM, and LPIPS if it is installed.

A result is a stack of planes: final latents (float32, no fixed range, so the reference's own range is the
peak) or decoded frames (uint8, peak 255).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]
Lpips = Callable[[Array, Array], float]
# Side of SSIM's uniform window, and its two constants, from Wang et al. 2004.
_WINDOW = 7
_K1, _K2 = 0.01, 0.03
# File name of torchvision's weights for the network that LPIPS uses.
_ALEXNET = "alexnet-owt-7be5be79.pth"


@dataclass(frozen=True)
class Quality:
    """Distance of a subject from the reference.

    Attributes:
        relative_l2: Relative error of one call with the same inputs, ``|subject - reference| / |reference|``.
        compared: Subject of the figures below: "final latents" or "decoded video".
        psnr_db: Peak signal-to-noise ratio in decibels; None if the two are identical.
        ssim: Structural similarity, at most 1.
        lpips: Learned perceptual distance, 0 is equal; None if not measured.
    """

    relative_l2: float
    compared: str
    psnr_db: float | None
    ssim: float
    lpips: float | None


def relative_l2(actual: Array, expected: Array) -> float:
    """Return ``|actual - expected| / |expected|`` in the L2 norm; the difference's norm if expected is 0."""
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    norm = float(np.linalg.norm(e))
    error = float(np.linalg.norm(a - e))
    return error / norm if norm else error


def peak(reference: Array) -> float:
    """Return the peak for PSNR and SSIM: 255 for uint8, else the reference's own range, at least tiny."""
    if reference.dtype == np.uint8:
        return 255.0
    return max(float(reference.max() - reference.min()), float(np.finfo(np.float32).tiny))


def psnr_db(actual: Array, expected: Array) -> float | None:
    """Return the peak signal-to-noise ratio in decibels, or None if the two are identical."""
    from skimage.metrics import peak_signal_noise_ratio

    if np.array_equal(actual, expected):
        return None
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    return float(peak_signal_noise_ratio(e, a, data_range=peak(expected)))


def ssim(actual: Array, expected: Array) -> float:
    """Return the mean structural similarity of two stacks of planes.

    Wang et al., "Image quality assessment: from error visibility to structural similarity", 2004, with a
    uniform window of 7 x 7, or as large as a smaller plane.

    Args:
        actual: Planes to judge, [..., height, width].
        expected: Reference planes of the same shape, which define the peak.
    """
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    c1, c2 = (_K1 * peak(expected)) ** 2, (_K2 * peak(expected)) ** 2
    mean_a, mean_e = _window_mean(a), _window_mean(e)
    var_a = _window_mean(a * a) - mean_a**2
    var_e = _window_mean(e * e) - mean_e**2
    covariance: Array = _window_mean(a * e) - mean_a * mean_e
    similarity = ((2 * mean_a * mean_e + c1) * (2 * covariance + c2)) / (
        (mean_a**2 + mean_e**2 + c1) * (var_a + var_e + c2)
    )
    return float(similarity.mean())


def _window_mean(planes: Array) -> Array:
    rows, columns = (min(_WINDOW, size) for size in planes.shape[-2:])
    # Averaging one direction after the other takes 14 values per pixel rather than 49.
    down = sliding_window_view(planes, rows, axis=-2).mean(axis=-1)
    averaged: Array = sliding_window_view(down, columns, axis=-1).mean(axis=-1)
    return averaged


def find_lpips() -> tuple[Lpips | None, str]:
    """Return LPIPS of two videos ([frames, height, width, 3], uint8), or None and the reason.

    Nothing is downloaded: the package `lpips` and the AlexNet weights must be on this machine.
    """
    if importlib.util.find_spec("lpips") is None:
        return None, "the package lpips is not installed"
    import torch

    weights = Path(torch.hub.get_dir()) / "checkpoints" / _ALEXNET
    if not weights.is_file():
        return None, f"the AlexNet weights must be at {weights}"
    network = importlib.import_module("lpips").LPIPS(net="alex", verbose=False).eval()

    def distance(actual: Array, expected: Array) -> float:
        sides = [
            torch.from_numpy(video).permute(0, 3, 1, 2).float() / 127.5 - 1 for video in (actual, expected)
        ]
        with torch.no_grad():
            return float(network(*sides).mean())

    return distance, ""
