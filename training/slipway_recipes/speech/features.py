"""Fast features for training that match the served ones, by a Fourier transform in float32.

The served features are computed in float64 and by matrix products, which an exported graph supports. Here a
window takes a third of that time. The results differ only at frequencies far below the loudest one of their
frame, and noise covers those.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import ASTFeatureExtractor
from transformers.audio_utils import window_function

from slipway_export.families.wakeword.features import FFT_SAMPLES, PREEMPHASIS, SMALLEST_ENERGY, mel_filters
from slipway_serving.families.wakeword.audio_limits import FRAME_SAMPLES, HOP_SAMPLES, PEAK, QUIET_PEAK


class QuickFeatures:
    """Feature extractor from windows at 16 kHz, none of them silent, to the backbone's input.

    Args:
        extractor: Extractor of the checkpoint, which gives the settings.
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
