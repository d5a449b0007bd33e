"""Synthetic speech for tests: words said by many voices, without a recording of anyone.

Where espeak-ng is installed its voices say the words; elsewhere each word is a fixed sequence of tones,
hummed and hissed by random voices at random speed. :func:`speaker` chooses; its ``name`` says which.
"""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

RATE_HZ = 16_000
Samples = NDArray[np.float32]

# First and second formant, Hz, of what a voice hums.
_VOICED = {
    "a": (750.0, 1250.0),
    "e": (480.0, 1950.0),
    "i": (290.0, 2300.0),
    "o": (460.0, 880.0),
    "u": (320.0, 700.0),
    "r": (420.0, 1300.0),
    "m": (250.0, 1100.0),
}
# Lowest and highest frequency, Hz, of what is hissed, and for how much of a sound's time it is.
_HISSED = {"s": (4500.0, 7500.0, 1.0), "f": (1500.0, 7500.0, 0.7), "t": (2500.0, 6000.0, 0.2)}
_PRONOUNCED = {
    "jarvis": "taris",
    "computer": "omute",
    "alexa": "erefa",
    "marvin": "mumi",
    "service": "sofu",
    "harvest": "fefot",
    "weather": "ueue",
    "lights": "oit",
    "music": "musi",
    "tomorrow": "tomoro",
    "open": "oem",
    "stop": "sto",
}
WORDS = tuple(_PRONOUNCED)


@dataclass(frozen=True)
class Speaker:
    """Says words.

    Args:
        name: what was heard: ``espeak-ng`` or ``tones``.
        say: (word, random) → [samples], mono, float32, peak 0.5, 16 kHz.
    """

    name: str
    say: Callable[[str, np.random.Generator], Samples]


def speaker() -> Speaker:
    """Return espeak-ng where it is installed, else the tone words."""
    return Speaker("espeak-ng", espeak) if shutil.which("espeak-ng") else Speaker("tones", tones)


def espeak(word: str, random: np.random.Generator) -> Samples:
    """Say a word by one of four English voices of espeak-ng, at a random pitch and speed."""
    voice = f"en-us+{random.choice(('m1', 'm3', 'f2', 'f4'))}"
    flags = ("-v", voice, "-s", str(random.integers(150, 181)), "-p", str(random.integers(40, 61)))
    said = subprocess.run(["espeak-ng", *flags, "--stdout", word], capture_output=True, check=True)
    samples, rate = soundfile.read(io.BytesIO(said.stdout), dtype="float32")
    samples = soxr.resample(samples, rate, RATE_HZ)
    loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max())
    return _levelled(samples[loud[0] : loud[-1] + 1])


def tones(word: str, random: np.random.Generator) -> Samples:
    """Say a word as a sequence of tones, by a random voice."""
    pitch_hz, tract = random.uniform(100, 200), random.uniform(0.95, 1.05)
    said = [
        _hissed(sound, random) if sound in _HISSED else _voiced(sound, pitch_hz, tract, random)
        for sound in _PRONOUNCED[word]
    ]
    return _levelled(np.concatenate(said))


def write(folder: Path, words: dict[str, int], voice: Speaker, seed: int) -> Path:
    """Write recordings of words into a new folder: word → how many."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for word, count in words.items():
        for index in range(count):
            said = voice.say(word, random)
            soundfile.write(folder / f"{word}-{index}.wav", said, RATE_HZ, subtype="PCM_16")
    return folder


def _voiced(sound: str, pitch_hz: float, tract: float, random: np.random.Generator) -> Samples:
    """Hum: the harmonics of a voice's pitch under two formants that its tract shifts."""
    time_s = _time(random)
    # The pitch falls a little and trembles.
    pitch = pitch_hz * (1 - 0.4 * time_s + 0.01 * np.sin(2 * np.pi * 6 * time_s))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE_HZ
    hummed = np.zeros_like(time_s)
    for harmonic in range(1, int(4000 / pitch_hz)):
        hz = harmonic * pitch_hz
        gain = sum(1 / (1 + ((hz - tract * formant) / 150) ** 2) for formant in _VOICED[sound])
        hummed += gain * np.sin(harmonic * phase + random.uniform(0, 2 * np.pi))
    return _faded(hummed / np.abs(hummed).max(), time_s)


def _hissed(sound: str, random: np.random.Generator) -> Samples:
    """Hiss: noise of a band; of a short one, silence before."""
    low_hz, high_hz, share = _HISSED[sound]
    time_s = _time(random)
    spectrum = np.fft.rfft(random.standard_normal(time_s.size))
    hz = np.fft.rfftfreq(time_s.size, 1 / RATE_HZ)
    hissed = np.fft.irfft(spectrum * ((hz > low_hz) & (hz < high_hz)), time_s.size)
    hissed[: round((1 - share) * time_s.size)] = 0
    return _faded(0.5 * hissed / np.abs(hissed).max(), time_s)


def _time(random: np.random.Generator) -> NDArray[np.float64]:
    """Return the moments of a sound of about a tenth of a second, seconds."""
    return np.arange(round(random.uniform(0.08, 0.14) * RATE_HZ)) / RATE_HZ


def _faded(sound: NDArray[np.float64], time_s: NDArray[np.float64]) -> Samples:
    return (sound * np.minimum(1, np.minimum(time_s, time_s[::-1]) / 0.015)).astype(np.float32)


def _levelled(samples: Samples) -> Samples:
    return (samples / np.abs(samples).max() * 0.5).astype(np.float32)
