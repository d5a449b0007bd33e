"""Reader of audio files, shared by `slipway listen` and training.

A file is decoded, mixed to mono, and resampled to 16 kHz as a whole. Clips, streams and training therefore
cut their windows from the same samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ, SAMPLE_RATES_HZ
from slipway_serving.protocol.errors import InvalidRequest

# Decoders of lossy files overshoot full scale: clipped noise came to 1.85 from MP3, to 1.68 from Ogg Vorbis.
# Values that are not audio, such as int16 in a float file, are far beyond that.
LARGEST_PEAK = 4.0
_FIX = "try converting it to WAV, FLAC, Ogg or MP3, for example by ffmpeg -i FILE out.wav"

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Recording:
    """Mono recording.

    Attributes:
        samples: Samples, [samples], float32, -1 to 1.
        rate_hz: Sampling rate, Hz.
        peak: Largest magnitude as it was decoded; above 1 the samples were divided by it.
    """

    samples: Samples
    rate_hz: int
    peak: float = 1.0

    @property
    def seconds(self) -> float:
        """Return the duration in seconds."""
        return self.samples.size / self.rate_hz


def read_recording(path: Path, *, mono: bool = False, longest_s: float = math.inf) -> Recording:
    """Read an audio file as mono at 16 kHz.

    Args:
        path: File of any kind that libsndfile reads: WAV, FLAC, Ogg, MP3, AIFF and others, of 8 to 32 bits.
        mono: True to take the mean of several channels; otherwise a file with several channels is refused.
        longest_s: Longest duration in seconds; it is checked before the samples are decoded.

    Raises:
        InvalidRequest: The file is missing, not audio, empty, too long, not finite or far beyond full scale,
            or its sampling rate or number of channels is not allowed.
    """
    samples, rate_hz = _decode(path, mono, longest_s)
    if not np.isfinite(samples).all():
        raise InvalidRequest(f"{path} must have finite samples, got NaN or infinity")
    if (peak := _peak(samples)) > LARGEST_PEAK:
        raise InvalidRequest(
            f"{path} must have samples of -1 to 1 (a decoder's overshoot of up to {LARGEST_PEAK:g} is"
            " accepted),"
            f" got {peak:g}; try dividing int16 samples by 32768"
        )
    if rate_hz != SAMPLE_RATE_HZ:
        import soxr

        samples = soxr.resample(samples, rate_hz, SAMPLE_RATE_HZ).astype(np.float32)
    peak = _peak(samples)
    return Recording(samples / np.float32(peak) if peak > 1 else samples, SAMPLE_RATE_HZ, peak)


def _decode(path: Path, mono: bool, longest_s: float) -> tuple[Samples, int]:
    """Return a file's samples, [samples], and its sampling rate in Hz."""
    import soundfile

    try:
        # Pass a descriptor, since soundfile reads every path that ends in .raw as headerless samples.
        with path.open("rb") as opened, soundfile.SoundFile(opened.fileno(), closefd=False) as file:
            rate_hz, seconds = file.samplerate, file.frames / file.samplerate
            if not SAMPLE_RATES_HZ[0] <= rate_hz <= SAMPLE_RATES_HZ[1]:
                low, high = SAMPLE_RATES_HZ
                raise InvalidRequest(f"{path} must have a sampling rate of {low} to {high} Hz, got {rate_hz}")
            if file.channels > 1 and not mono:
                raise InvalidRequest(
                    f"{path} must be mono, got {file.channels} channels; try --mono to average them"
                )
            if seconds > longest_s:
                raise InvalidRequest(f"{path} must be at most {longest_s:g} s long, got {seconds:.2f} s")
            channels = file.read(dtype="float32", always_2d=True)
    except OSError as error:
        raise InvalidRequest(f"{path} must be an audio file that can be read, got {error.strerror}") from None
    except soundfile.SoundFileError as error:
        reason = str(getattr(error, "error_string", error)).rstrip(".")
        raise InvalidRequest(f"{path} must be an audio file, got {reason}; {_FIX}") from None
    if not channels.size:
        raise InvalidRequest(f"{path} must contain audio, got no samples")
    return channels.mean(axis=1, dtype=np.float32), rate_hz


def _peak(samples: Samples) -> float:
    return float(np.abs(samples).max(initial=0.0))
