"""Voices: espeak-ng's accents and variants, split into those for training and those for evaluation."""

from __future__ import annotations

import numpy as np
import soxr

from slipway_recipes.speech.espeak import Samples, Voice
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ

ACCENTS = ("gmw/en", "gmw/en-US", "gmw/en-GB-scotland", "gmw/en-GB-x-rp", "gmw/en-US-nyc", "gmw/en-029")
# Each variant is a voice with its own formants, breath and tremble. Whispers and robots are left out.
HEARD = (
    *("f1", "f2", "f4", "f5", "m1", "m2", "m4", "m5", "m7", "m8", "klatt", "klatt3", "klatt4", "klatt6"),
    *("Alex", "Alicia", "Andrea", "Andy", "Annie", "Denis", "Diogo", "Gene", "Henrique", "Hugo", "Jacky"),
    *("Lee", "Marco", "Michael", "Mike", "Nguyen", "Reed", "RicishayMax", "Storm", "Tweaky", "adam", "anika"),
    *("antonio", "aunty", "belinda", "benjamin", "boris", "caleb", "david", "ed", "edward", "gustave", "ian"),
    *("iven", "iven3", "john", "kaukovalta", "marcelo", "max", "miguel", "mike2", "norbert", "paul", "pedro"),
    *("quincy", "rob", "robert", "sandro", "steph", "steph2", "travis", "victor"),
)
UNHEARD = (
    *(
        "f3",
        "m3",
        "m6",
        "klatt2",
        "klatt5",
        "Gene2",
        "Mario",
        "RicishayMax3",
        "edward2",
        "grandma",
        "grandpa",
    ),
    *("iven4", "linda", "michel", "pablo", "shelby", "steph3", "zac"),
)

# Other speakers: largest factor by which formants and pitch are lower or higher; largest change of loudness,
# in dB, at points that are evenly spaced in octaves; number and range of these points.
_HIGHER, _TIMBRE_DB, _TIMBRE_POINTS, _TIMBRE_HZ = 1.2, 6.0, 6, (100.0, 8000.0)
_FFT_STEP = 2048


def drawn_voice(random: np.random.Generator, variants: tuple[str, ...]) -> Voice:
    """Return a voice of a random variant, with a random accent, speed and pitch."""
    return Voice(
        f"{random.choice(ACCENTS)}+{random.choice(variants)}",
        words_per_minute=int(random.integers(130, 211)),
        pitch=int(random.integers(30, 71)),
        liveliness=int(random.integers(20, 81)),
    )


def otherwise(said: Samples, random: np.random.Generator, highest: float = _HIGHER) -> tuple[Samples, float]:
    """Return speech as by another speaker, with a longer or shorter throat and another timbre.

    Args:
        said: Speech, [samples], 16 kHz.
        random: Generator of the speaker. Formants, pitch and speed change by a factor of 1 / 1.2 to
            `highest`, and the loudness of frequencies changes smoothly by up to 6 dB.
        highest: Largest factor, 1.2 or more; a small child's formants and pitch are 1.4 times a woman's.

    Returns:
        Speech, [samples], peak 0.5, and the factor by which it is longer.
    """
    stretched = float(np.exp(random.uniform(-np.log(highest), np.log(_HIGHER))))
    samples = soxr.resample(said, SAMPLE_RATE_HZ, SAMPLE_RATE_HZ * stretched, quality="MQ")
    # Fourier transforms of sizes with a large prime factor take several times as long.
    size = -(-samples.size // _FFT_STEP) * _FFT_STEP
    spectrum = np.fft.rfft(samples, size)
    points_hz = np.geomspace(*_TIMBRE_HZ, _TIMBRE_POINTS)
    frequencies_hz = np.linspace(0, SAMPLE_RATE_HZ / 2, spectrum.size).clip(*_TIMBRE_HZ)
    gains_db = random.uniform(-_TIMBRE_DB, _TIMBRE_DB, _TIMBRE_POINTS)
    spectrum *= 10 ** (np.interp(np.log(frequencies_hz), np.log(points_hz), gains_db) / 20)
    samples = np.fft.irfft(spectrum, size)[: samples.size]
    return np.asarray(samples / np.abs(samples).max() * 0.5, np.float32), stretched
