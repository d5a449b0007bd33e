"""What happens to audio before the backbone, in training and in serving alike.

Mono samples are measured (silence is decided by loudness alone), brought to one peak, resampled to the
backbone's rate and made into features by transformers' ASTFeatureExtractor with the checkpoint's own figures.
A clip that is longer than the backbone sees is refused, where that extractor would cut it off. Clips at 16
kHz that are served go through a graph of the same rules (``wakeword_features``) instead.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

from slipway_serving.errors import InvalidRequest, raise_all
from slipway_serving.wakeword.hearing import PEAK, QUIET_PEAK, is_silent, longest_s
from slipway_serving.wakeword.request import SAMPLE_RATE_HZ, ClipsRequest

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Features:
    """A clip as the backbone takes it.

    Attributes:
        input_values: [max_length, num_mel_bins], float32, normalized log-mel energies.
        rms: root mean square of the clip's samples as they came, 0 to 1.
    """

    input_values: NDArray[np.float32]
    rms: float

    @property
    def silent(self) -> bool:
        """Whether nothing was said in it, by its loudness."""
        return is_silent(self.rms)


def loudness(samples: Samples) -> float:
    """Return the root mean square of samples."""
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


def prepare(samples: Samples, sample_rate: int) -> Samples:
    """Return a clip at one peak and at 16 kHz.

    Args:
        samples: [samples], mono, -1 to 1.
        sample_rate: of the samples, Hz.
    """
    peak = float(np.abs(samples).max())
    if peak > QUIET_PEAK:
        samples = (samples / peak * PEAK).astype(np.float32)
    if sample_rate != SAMPLE_RATE_HZ:
        samples = soxr.resample(samples, sample_rate, SAMPLE_RATE_HZ)
    return np.ascontiguousarray(samples, dtype=np.float32)


class Extractor:
    """Makes features of clips, with the figures of a checkpoint.

    Args:
        folder: with the checkpoint's ``preprocessor_config.json``.

    Attributes:
        longest_s: what the backbone sees of a clip, seconds; at most 10.

    Raises:
        InvalidRequest: the file is missing or of another extractor.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import ASTFeatureExtractor

        if not (folder / "preprocessor_config.json").is_file():
            raise InvalidRequest(f"preprocessor_config.json must lie in {folder}, got nothing; try exporting")
        with warnings.catch_warnings():
            # 128 filters leave some of 257 frequencies without one, as in the published checkpoints.
            warnings.filterwarnings("ignore", message="At least one mel filter has all zero values")
            self._extractor = ASTFeatureExtractor.from_pretrained(str(folder), local_files_only=True)
        if self._extractor.sampling_rate != SAMPLE_RATE_HZ:
            raise InvalidRequest(
                f"{folder}: sampling_rate must be {SAMPLE_RATE_HZ} in preprocessor_config.json,"
                f" got {self._extractor.sampling_rate}"
            )
        self.longest_s = longest_s(self._extractor.max_length)

    def __call__(self, samples: Samples, sample_rate: int) -> Features:
        """Return the features of a clip; of a silent one all zeros, which nobody looks at.

        Args:
            samples: [samples], mono, float32, -1 to 1.
            sample_rate: of the samples, Hz, 8,000 to 192,000.

        Raises:
            InvalidRequest: naming every broken rule.
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
