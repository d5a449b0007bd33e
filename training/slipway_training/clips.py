"""Recordings of a folder, cut into the windows that a served wake word receives, and augmented windows.

Serving cuts a stream into windows of one second that overlap by half, so training uses the same windows. A
long negative recording gives every window; a positive one gives the window with most of its energy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

from slipway_client.sound import read_recording
from slipway_serving.families.wakeword.audio import loudness
from slipway_serving.families.wakeword.audio_limits import is_silent
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ, SHORTEST_S
from slipway_serving.protocol.errors import InvalidRequest, raise_all

WINDOW_S, OVERLAP = 1.0, 0.5
LONGEST_RECORDING_S = 3600.0
# Some of these formats cannot be decoded. An error then names the recording, so that none is skipped.
SUFFIXES = (
    *(
        ".aac",
        ".aif",
        ".aiff",
        ".amr",
        ".flac",
        ".m4a",
        ".mp3",
        ".oga",
        ".ogg",
        ".opus",
        ".wav",
        ".webm",
        ".wma",
    ),
)
WINDOW_SAMPLES = round(WINDOW_S * SAMPLE_RATE_HZ)
_HOP_SAMPLES = round(WINDOW_SAMPLES * (1 - OVERLAP))
# The middle of a word is at most half a hop away from the middle of a stream's nearest window.
_SPAN_SAMPLES = WINDOW_SAMPLES + _HOP_SAMPLES
_SPEED = (0.92, 1.08)
_NOISE_DB = (5.0, 30.0)
_PEAK = 0.9
_SHOWN_FILES = 5

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Clip:
    """One recording and its training windows.

    Args:
        path: Path of the file.
        windows: Windows of [samples] each, mono, float32, -1 to 1, 16 kHz, at most one second, none silent.
        spans: Samples from which the augmentation of each window is cut. For a recording of the word they
            are 1.5 s around its middle, padded with silence beyond the recording's ends, since a stream's
            windows begin anywhere. For other recordings they are the window itself.
    """

    path: Path
    windows: tuple[Samples, ...]
    spans: tuple[Samples, ...]


def read_clips(folder: Path, *, positive: bool) -> list[Clip]:
    """Read all recordings of a folder and its subfolders, with channels averaged.

    Args:
        folder: Folder with WAV, FLAC, Ogg, MP3 or AIFF files.
        positive: True if each recording is one utterance of the word, False if none contains the word.

    Raises:
        InvalidRequest: The folder has no recording, or some recordings cannot be used. The error names the
            first five.
    """
    where = "positive" if positive else "negative"
    if not folder.is_dir():
        raise InvalidRequest(f"train: {where} must be a folder of recordings, got {folder}")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise InvalidRequest(
            f"train: {where} must hold recordings ({', '.join(SUFFIXES)}), got none in {folder}"
        )
    clips, problems = [], []
    for path in files:
        try:
            samples = read_samples(path)
            clips.append(_clip(path, samples, positive=positive))
            if positive and not clips[-1].windows:
                problems.append(f"{path} must be louder than silence, got an rms of {loudness(samples):.4f}")
        except InvalidRequest as error:
            problems.append(str(error))
    shown = problems[:_SHOWN_FILES]
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} recordings more")
    raise_all(f"train: {where}", shown)
    return [clip for clip in clips if clip.windows]


def read_samples(path: Path) -> Samples:
    """Read a recording as `slipway listen` does, as mono at 16 kHz.

    Returns:
        [samples], float32, -1 to 1.

    Raises:
        InvalidRequest: The file is no audio or not finite, or its rate or length is outside what is served.
    """
    recording = read_recording(path, mono=True, longest_s=LONGEST_RECORDING_S)
    if recording.seconds < SHORTEST_S:
        raise InvalidRequest(f"{path} must be at least {SHORTEST_S:g} s long, got {recording.seconds:.2f} s")
    return recording.samples


def varied(span: Samples, random: np.random.Generator) -> Samples:
    """Return an augmented second of audio, with random speed, offset and noise.

    Args:
        span: Samples, [samples], at 16 kHz. From a span longer than a second, a random second is cut.
        random: Generator of speed (0.92 to 1.08), offset and noise (5 to 30 dB below the sound).

    Returns:
        Samples, [16000], peak 0.9.
    """
    speed = random.uniform(*_SPEED)
    said = soxr.resample(span, SAMPLE_RATE_HZ, SAMPLE_RATE_HZ / speed)
    room = WINDOW_SAMPLES - said.size
    moment = int(random.integers(abs(room) + 1))
    heard = np.zeros(WINDOW_SAMPLES, np.float32)
    if room < 0:
        heard[:] = said[moment : moment + WINDOW_SAMPLES]
    else:
        heard[moment : moment + said.size] = said
    noise_rms = loudness(said) * 10 ** (-random.uniform(*_NOISE_DB) / 20)
    heard += noise_rms * noise(random)
    heard *= _PEAK / np.abs(heard).max()
    return heard


def noise(random: np.random.Generator) -> Samples:
    """Return a second of noise, as :func:`noise_of` does."""
    return noise_of(WINDOW_SAMPLES, random)


def noise_of(size: int, random: np.random.Generator) -> Samples:
    """Return noise, [size], rms 1, with power proportional to 1 / frequency**a, a drawn from 0 to 2."""
    spectrum = np.fft.rfft(random.standard_normal(size))
    spectrum *= np.maximum(np.arange(spectrum.size), 1.0) ** -random.uniform(0.0, 1.0)
    samples = np.fft.irfft(spectrum, size)
    return (samples / math.sqrt(np.mean(samples**2))).astype(np.float32)


def _clip(path: Path, samples: Samples, *, positive: bool) -> Clip:
    if positive:
        start = _loudest(samples)
        window = samples[start : start + WINDOW_SAMPLES]
        middle = start + _middle(window)
        cut = [(window, np.pad(samples, _SPAN_SAMPLES // 2)[middle : middle + _SPAN_SAMPLES])]
    else:
        cut = [(window, window) for window in _all_windows(samples)]
    kept = [each for each in cut if not is_silent(loudness(each[0]))]
    return Clip(path, tuple(window for window, _ in kept), tuple(span for _, span in kept))


def _loudest(samples: Samples) -> int:
    """Return the first sample of the second with most of a recording's energy."""
    if samples.size <= WINDOW_SAMPLES:
        return 0
    energy = np.concatenate(([0.0], np.cumsum(np.square(samples, dtype=np.float64))))
    return int(np.argmax(energy[WINDOW_SAMPLES:] - energy[:-WINDOW_SAMPLES]))


def _middle(window: Samples) -> int:
    """Return the energy-weighted mean time of a window, in samples from its start."""
    energy = np.square(window, dtype=np.float64)
    return int(np.average(np.arange(window.size), weights=energy)) if energy.any() else window.size // 2


def _all_windows(samples: Samples) -> Iterator[Samples]:
    """Yield every whole window, as in a stream; a shorter recording is a single window."""
    if samples.size <= WINDOW_SAMPLES:
        yield samples
        return
    for start in range(0, samples.size - WINDOW_SAMPLES + 1, _HOP_SAMPLES):
        yield samples[start : start + WINDOW_SAMPLES]
