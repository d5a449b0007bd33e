"""Simulated rooms: echoes, noise, and background speech."""

from __future__ import annotations

import numpy as np

from slipway_recipes.speech.espeak import Samples
from slipway_serving.families.wakeword.audio import loudness
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ
from slipway_training.clips import noise_of

_ECHO_S = (0.05, 0.5)
_LONGEST_S = 0.4
_NOISE_DB = (3.0, 35.0)


def echoed(said: Samples, random: np.random.Generator) -> Samples:
    """Add the echoes of a random room to speech, which fade by 60 dB within 0.05 to 0.5 s.

    Args:
        said: Speech, [samples], 16 kHz.
        random: Generator of the room.

    Returns:
        Speech of the same length, [samples].
    """
    time_s = np.arange(round(_LONGEST_S * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    fade_s = random.uniform(*_ECHO_S)
    echoes = random.standard_normal(time_s.size) * 10 ** (-3 * time_s / fade_s)
    echoes *= random.uniform(0.1, 1.0) / np.sqrt(np.sum(echoes**2))
    echoes[0] = 1.0
    size = said.size + echoes.size
    heard = np.fft.irfft(np.fft.rfft(said, size) * np.fft.rfft(echoes, size), size)[: said.size]
    return heard.astype(np.float32)


def noisy(said: Samples, random: np.random.Generator, behind: Samples | None = None) -> Samples:
    """Add noise of a random colour, 3 to 35 dB below the speech, and optional background speech."""
    below = loudness(said) or 0.05
    heard = said + below * 10 ** (-random.uniform(*_NOISE_DB) / 20) * noise_of(said.size, random)
    if behind is not None:
        heard += below * 10 ** (-random.uniform(8.0, 25.0) / 20) * behind / max(loudness(behind), 1e-6)
    return np.asarray(heard * (random.uniform(0.1, 0.95) / np.abs(heard).max()), np.float32)
