"""Audio to the features of an AST, as one network: the loudness rule, and transformers' extractor.

The spectrum is computed in float64, as ASTFeatureExtractor does: next to a pure tone the quiet frequencies of
a frame lie below what float32 resolves. As only its power counts, the Fourier transform is taken about the
frame's middle: there the window is even, so that two products of half a frame's length make it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.audio_utils import mel_filter_bank, window_function

from slipway_serving.wakeword.hearing import FRAME_SAMPLES, HOP_SAMPLES, PEAK, QUIET_PEAK, SILENT_RMS
from slipway_serving.wakeword.request import LONGEST_S, SAMPLE_RATE_HZ, SAMPLE_RATES_HZ

if TYPE_CHECKING:
    from transformers import ASTFeatureExtractor

# The extractor's own, of Kaldi's filter banks.
_FFT_SAMPLES = 512
_HALF = FRAME_SAMPLES // 2
_PREEMPHASIS = 0.97
_LOWEST_HZ = 20
_SMALLEST_ENERGY = 1.192092955078125e-07
# A longer clip is refused whatever its rate, so that nothing beyond is looked at.
_MOST_SAMPLES = int(LONGEST_S * SAMPLE_RATES_HZ[1])


class Features(nn.Module):
    """Clips at 16 kHz to what the backbone takes.

    Nothing is refused here: samples that are no legal ones are made such, so that a clip which is refused
    later harms none that shares its batch.

    Args:
        extractor: whose figures to use.
    """

    cosines: Tensor
    sines: Tensor
    filters: Tensor
    ends: Tensor

    def __init__(self, extractor: ASTFeatureExtractor) -> None:
        super().__init__()
        self.frames = extractor.max_length
        self.mean: float = extractor.mean if extractor.do_normalize else 0.0
        self.scale: float = 2 * extractor.std if extractor.do_normalize else 1.0
        filters = mel_filter_bank(
            num_frequency_bins=_FFT_SAMPLES // 2 + 1,
            num_mel_filters=extractor.num_mel_bins,
            min_frequency=_LOWEST_HZ,
            max_frequency=SAMPLE_RATE_HZ // 2,
            sampling_rate=SAMPLE_RATE_HZ,
            norm=None,
            mel_scale="kaldi",
            triangularize_in_mel_space=True,
        )
        # Of the samples beside the middle, outwards; rows are samples, columns frequencies.
        beside = np.arange(_HALF) + 0.5
        angles = 2 * np.pi / _FFT_SAMPLES * np.outer(beside, np.arange(_FFT_SAMPLES // 2 + 1))
        window = window_function(FRAME_SAMPLES, "hann", periodic=False)[_HALF:, None]
        self.register_buffer("cosines", torch.from_numpy(window * np.cos(angles)))
        self.register_buffer("sines", torch.from_numpy(window * np.sin(angles)))
        self.register_buffer("filters", torch.from_numpy(filters).float())
        self.register_buffer("ends", torch.arange(self.frames) * HOP_SAMPLES + FRAME_SAMPLES)

    def forward(self, audio: Tensor) -> tuple[Tensor, Tensor]:
        """Make features of clips of one length.

        Args:
            audio: [batch, samples], float32, mono, -1 to 1.

        Returns:
            Normalized log-mel energies [batch, max_length, num_mel_bins], zeros for a silent clip, and the
            root mean square of each clip's samples [batch, 1].
        """
        audio = audio[:, :_MOST_SAMPLES]
        samples = audio.shape[1]
        audio = torch.where(audio.isnan(), torch.zeros_like(audio), audio).clamp(-1, 1)
        # Never empty, and one block of samples longer than the last frame needs.
        audio = functional.pad(audio, (0, (self.frames + 2) * HOP_SAMPLES))
        rms = (audio.double().square().sum(1, keepdim=True) / samples).sqrt().float()
        peak = audio.abs().amax(1, keepdim=True)
        audio = torch.where(peak > QUIET_PEAK, audio / peak * PEAK, audio)
        energies = self._energies(audio)
        # A row beyond the clip is a zero before the normalization.
        energies = torch.where((self.ends <= samples)[:, None], energies, torch.zeros_like(energies))
        features = (energies - self.mean) / self.scale
        silent = (rms < SILENT_RMS)[:, :, None]
        return torch.where(silent, torch.zeros_like(features), features), rms

    def _energies(self, audio: Tensor) -> Tensor:
        """Return log-mel energies [batch, max_length, num_mel_bins] of [batch, samples]."""
        count = self.frames + 2
        audio = audio[:, : count * HOP_SAMPLES].double()
        # What precedes a frame's first sample does not count: there the window is zero.
        emphasized = audio - _PREEMPHASIS * functional.pad(audio, (1, -1))
        # The mean that each frame is to lack is emphasized as well.
        mean = self._frames(audio).mean(2, keepdim=True) * (1 - _PREEMPHASIS)
        frames = self._frames(emphasized)
        before, after = frames[:, :, :_HALF].flip(2), frames[:, :, _HALF:]
        real = (before + after - 2 * mean) @ self.cosines
        imaginary = (after - before) @ self.sines
        power = (real.square() + imaginary.square()).float()
        energies: Tensor = (power @ self.filters).clamp(min=_SMALLEST_ENERGY).log()
        return energies

    def _frames(self, audio: Tensor) -> Tensor:
        """Return the frames [batch, max_length, 400] of [batch, samples]: two and a half hops each."""
        blocks = audio.view(-1, self.frames + 2, HOP_SAMPLES)
        rest = FRAME_SAMPLES - 2 * HOP_SAMPLES
        return torch.cat([blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:, :rest]], dim=2)
