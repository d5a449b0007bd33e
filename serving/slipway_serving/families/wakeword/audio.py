"""Audio preprocessing before the backbone, shared by training and serving.

The loudness of mono samples is measured (it alone decides silence), then the samples are normalized to one
peak, resampled to the backbone's rate, and converted to features by transformers' ASTFeatureExtractor with
the checkpoint's parameters. A clip that exceeds the backbone's window is refused; the extractor would cut it
off. Served clips at 16 kHz use a graph with the same rules (``wakeword_features``) instead.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

from slipway_serving.families.wakeword.audio_limits import PEAK, QUIET_PEAK, is_silent, longest_s
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ, ClipsRequest
from slipway_serving.protocol.errors import InvalidRequest, raise_all

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Features:
    """Features of a clip, as the backbone takes them.

    Attributes:
        input_values: Normalized log-mel energies, [max_length, num_mel_bins], float32.
        rms: Root mean square of the clip's original samples, 0 to 1.
    """

    input_values: NDArray[np.float32]
    rms: float

    @property
    def silent(self) -> bool:
        """Return True if the clip's loudness shows that nothing was said."""
        return is_silent(self.rms)


def loudness(samples: Samples) -> float:
    """Return the root mean square of samples."""
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


def prepare(samples: Samples, sample_rate: int) -> Samples:
    """Normalize a clip to one peak and resample it to 16 kHz.

    Args:
        samples: Mono samples, [samples], -1 to 1.
        sample_rate: Sampling rate of the samples, Hz.
    """
    peak = float(np.abs(samples).max())
    if peak > QUIET_PEAK:
        samples = (samples / peak * PEAK).astype(np.float32)
    if sample_rate != SAMPLE_RATE_HZ:
        samples = soxr.resample(samples, sample_rate, SAMPLE_RATE_HZ)
    return np.ascontiguousarray(samples, dtype=np.float32)


class Extractor:
    """Feature extractor with the parameters of a checkpoint.

    Args:
        folder: Folder of the checkpoint's ``preprocessor_config.json``.

    Attributes:
        longest_s: Longest clip that the backbone sees completely, in seconds; at most 10.

    Raises:
        InvalidRequest: The file is missing or belongs to another extractor.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import ASTFeatureExtractor

        if not (folder / "preprocessor_config.json").is_file():
            raise InvalidRequest(
                f"{folder} must contain preprocessor_config.json, got none; try exporting again"
            )
        with warnings.catch_warnings():
            # Some of the 128 filters cover none of the 257 frequencies, as in the published checkpoints.
            warnings.filterwarnings("ignore", message="At least one mel filter has all zero values")
            self._extractor = ASTFeatureExtractor.from_pretrained(str(folder), local_files_only=True)
        if self._extractor.sampling_rate != SAMPLE_RATE_HZ:
            raise InvalidRequest(
                f"{folder}: sampling_rate must be {SAMPLE_RATE_HZ} in preprocessor_config.json,"
                f" got {self._extractor.sampling_rate}"
            )
        self.longest_s = longest_s(self._extractor.max_length)

    def __call__(self, samples: Samples, sample_rate: int) -> Features:
        """Return the features of a clip; those of a silent clip are zeros, which are not used.

        Args:
            samples: Mono samples, [samples], float32, -1 to 1.
            sample_rate: Sampling rate of the samples, Hz, 8,000 to 192,000.

        Raises:
            InvalidRequest: A rule is broken; all broken rules are named.
        """
        clips = ClipsRequest(samples[None], np.array([[sample_rate]], np.int64))
        raise_all(clips.model, clips.too_long(self.longest_s))
        rms = loudness(samples)
        if is_silent(rms):
            shape = (self._extractor.max_length, self._extractor.num_mel_bins)
            return Features(np.zeros(shape, np.float32), rms)
        prepared = prepare(samples, sample_rate)
        made = self._extractor(prepared, sampling_rate=SAMPLE_RATE_HZ, return_tensors="np")
        return Features(made["input_values"][0].astype(np.float32), rms)
