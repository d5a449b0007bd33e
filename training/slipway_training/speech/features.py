"""The features of a training's windows: those that are served, by a Fourier transform in float32.

What is served computes in float64 and by products, which a graph has; here a window takes a third of that
time. Both differ where a frequency lies far below the loudest of its frame only, and noise covers that.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import ASTFeatureExtractor
from transformers.audio_utils import window_function

from slipway_export.modeling.wakeword_features import FFT_SAMPLES, PREEMPHASIS, SMALLEST_ENERGY, mel_filters
from slipway_serving.wakeword.hearing import FRAME_SAMPLES, HOP_SAMPLES, PEAK, QUIET_PEAK


class QuickFeatures:
    """Windows at 16 kHz, none of them silent, to what the backbone takes.

    Args:
        extractor: whose figures to use.
    """

    def __init__(self, extractor: ASTFeatureExtractor) -> None:
        self._frames: int = extractor.max_length
        self._mean: float = extractor.mean
        self._scale: float = 2 * extractor.std
        self._filters = torch.from_numpy(mel_filters(extractor.num_mel_bins)).float()
        self._window = torch.from_numpy(window_function(FRAME_SAMPLES, "hann", periodic=False)).float()

    def __call__(self, windows: Tensor) -> Tensor:
        """Return features [batch, max_length, num_mel_bins] of windows [batch, samples], both float32."""
        peak = windows.abs().amax(1, keepdim=True)
        windows = torch.where(peak > QUIET_PEAK, windows / peak * PEAK, windows)
        frames = windows.unfold(1, FRAME_SAMPLES, HOP_SAMPLES)[:, : self._frames]
        frames = frames - frames.mean(dim=2, keepdim=True)
        before = torch.cat([frames[:, :, :1], frames[:, :, :-1]], dim=2)
        spectrum = torch.fft.rfft((frames - PREEMPHASIS * before) * self._window, FFT_SAMPLES)
        power = spectrum.real.square() + spectrum.imag.square()
        energies: Tensor = (power @ self._filters).clamp(min=SMALLEST_ENERGY).log()
        beyond = -self._mean / self._scale
        heard = torch.full((len(windows), self._frames, energies.shape[2]), beyond)
        heard[:, : energies.shape[1]] = (energies - self._mean) / self._scale
        return heard
