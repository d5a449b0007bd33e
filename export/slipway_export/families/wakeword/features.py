"""Network that turns audio into the features of an AST: a loudness rule, and transformers' extractor.

The spectrum is computed in float64, as in ASTFeatureExtractor: next to a pure tone, the quiet frequencies of
a frame are below the resolution of float32. Only the power of the spectrum matters, so the Fourier transform
is centred on the frame's middle. The window is even there, so two products of half a frame's length suffice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers.audio_utils import mel_filter_bank, window_function

from slipway_serving.families.wakeword.audio_limits import (
    FRAME_SAMPLES,
    HOP_SAMPLES,
    PEAK,
    QUIET_PEAK,
    SILENT_RMS,
)
from slipway_serving.families.wakeword.request import LONGEST_S, SAMPLE_RATE_HZ, SAMPLE_RATES_HZ

if TYPE_CHECKING:
    from transformers import ASTFeatureExtractor

# These values are those of the extractor, from Kaldi's filter banks.
FFT_SAMPLES = 512
_HALF = FRAME_SAMPLES // 2
PREEMPHASIS = 0.97
_LOWEST_HZ = 20
SMALLEST_ENERGY = 1.192092955078125e-07
# A longer clip is refused at any sample rate, so the graph ignores the samples beyond this number.
_MOST_SAMPLES = int(LONGEST_S * SAMPLE_RATES_HZ[1])


def mel_filters(bands: int) -> NDArray[np.float64]:
    """Return the extractor's filters, [frequencies, bands]."""
    filters: NDArray[np.float64] = mel_filter_bank(
        num_frequency_bins=FFT_SAMPLES // 2 + 1,
        num_mel_filters=bands,
        min_frequency=_LOWEST_HZ,
        max_frequency=SAMPLE_RATE_HZ // 2,
        sampling_rate=SAMPLE_RATE_HZ,
        norm=None,
        mel_scale="kaldi",
        triangularize_in_mel_space=True,
    )
    return filters


class Features(nn.Module):
    """Feature extractor from clips at 16 kHz to the input of the backbone.

    It refuses nothing: it replaces invalid samples by valid ones, so that a clip that is refused later does
    not harm the other clips of its batch.

    Args:
        extractor: Feature extractor of transformers that supplies the settings.
    """

    cosines: Tensor
    mean_cosines: Tensor
    sines: Tensor
    filters: Tensor
    ends: Tensor

    def __init__(self, extractor: ASTFeatureExtractor) -> None:
        super().__init__()
        self.frames = extractor.max_length
        self.mean: float = extractor.mean if extractor.do_normalize else 0.0
        self.scale: float = 2 * extractor.std if extractor.do_normalize else 1.0
        filters = mel_filters(extractor.num_mel_bins)
        # Rows are the samples from the middle outwards; columns are the frequencies that occur in a filter.
        beside = np.arange(_HALF) + 0.5
        frequencies = np.flatnonzero(filters.any(axis=1))
        angles = 2 * np.pi / FFT_SAMPLES * np.outer(beside, frequencies)
        window = window_function(FRAME_SAMPLES, "hann", periodic=False)[_HALF:, None]
        cosines = window * np.cos(angles)
        self.register_buffer("cosines", torch.from_numpy(cosines))
        # These are the cosines of a frame whose samples are all 1, summed over both halves.
        self.register_buffer("mean_cosines", torch.from_numpy(2 * cosines.sum(0)))
        self.register_buffer("sines", torch.from_numpy(window * np.sin(angles)))
        self.register_buffer("filters", torch.from_numpy(filters[frequencies]).float())
        self.register_buffer("ends", torch.arange(self.frames) * HOP_SAMPLES + FRAME_SAMPLES)

    def forward(self, audio: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the features of clips of equal length.

        Args:
            audio: Mono clips, [batch, samples], float32, -1 to 1.

        Returns:
            Normalized log-mel energies [batch, max_length, num_mel_bins], zeros for a silent clip, and the
            root mean square of each clip's samples [batch, 1].
        """
        audio = audio[:, :_MOST_SAMPLES]
        samples = audio.shape[1]
        audio = torch.where(audio.isnan(), torch.zeros_like(audio), audio).clamp(-1, 1)
        # Rows beyond the clip are not computed: one second fills only a tenth of a checkpoint's 1024 frames.
        rows = audio[:, : self.frames * HOP_SAMPLES - 1].shape[1] // HOP_SAMPLES + 1
        # The padded audio is never empty, and one block of samples longer than the last frame needs.
        audio = functional.pad(audio, (0, 3 * HOP_SAMPLES))
        double = audio.double()
        # A product is used and not a square, for which ONNX Runtime calls a power function.
        rms = ((double * double).sum(1, keepdim=True) / samples).sqrt().float()
        peak = audio.abs().amax(1, keepdim=True)
        audio = torch.where(peak > QUIET_PEAK, audio / peak * PEAK, audio)
        features = (self._energies(audio, rows) - self.mean) / self.scale
        features = functional.pad(features, (0, 0, 0, self.frames - rows))
        silent = (rms < SILENT_RMS)[:, :, None]
        # A row beyond the clip is zero before the normalization.
        otherwise = torch.where(silent, 0.0, -self.mean / self.scale)
        heard = (self.ends <= samples)[:, None] & ~silent
        return torch.where(heard, features, otherwise), rms

    def _energies(self, audio: Tensor, rows: int) -> Tensor:
        """Return the log-mel energies [batch, rows, num_mel_bins] of audio [batch, samples]."""
        count = rows + 2
        audio = audio[:, : count * HOP_SAMPLES].double()
        # The sample before a frame's first one does not matter, since the window is zero there.
        emphasized = audio - PREEMPHASIS * functional.pad(audio, (1, -1))
        # A frame is two and a half hops, taken from blocks of one hop; its first half is read backwards.
        blocks = emphasized.view(-1, count, HOP_SAMPLES)
        reversed_ = blocks.flip(2)
        inner = _HALF - HOP_SAMPLES
        before = torch.cat([reversed_[:, 1:-1, -inner:], reversed_[:, :-2]], dim=2)
        after = torch.cat([blocks[:, 1:-1, inner:], blocks[:, 2:, : FRAME_SAMPLES - 2 * HOP_SAMPLES]], dim=2)
        real = (before + after) @ self.cosines - self._means(audio, rows) * self.mean_cosines
        imaginary = (after - before) @ self.sines
        real, imaginary = real.float(), imaginary.float()
        power = real * real + imaginary * imaginary
        energies: Tensor = (power @ self.filters).clamp(min=SMALLEST_ENERGY).log()
        return energies

    def _means(self, audio: Tensor, rows: int) -> Tensor:
        """Return the mean of each pre-emphasized frame, [batch, rows, 1]; the caller subtracts it."""
        half = HOP_SAMPLES // 2
        sums = audio.view(-1, 2 * (rows + 2), half).sum(2)
        ends = 2 * rows
        whole = sums[:, 0:ends:2]
        for start in range(1, FRAME_SAMPLES // half):
            whole = whole + sums[:, start : start + ends : 2]
        means: Tensor = whole[:, :, None] * ((1 - PREEMPHASIS) / FRAME_SAMPLES)
        return means
