"""Who speaks: espeak-ng's accents and variants, divided into those of trainings and those that judge them."""

from __future__ import annotations

import numpy as np
import soxr

from slipway_serving.wakeword.request import SAMPLE_RATE_HZ
from slipway_training.speech.espeak import Samples, Voice

ACCENTS = ("gmw/en", "gmw/en-US", "gmw/en-GB-scotland", "gmw/en-GB-x-rp", "gmw/en-US-nyc", "gmw/en-029")
# Each variant is a voice of its own: formants, breath, tremble. Whispers and robots are left out.
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

# Of a speaker who is none of them: how many times as low or as high all formants and the pitch lie at most,
# and how much louder or quieter some frequencies are, at as many points of the scale of octaves.
_HIGHER, _TIMBRE_DB, _TIMBRE_POINTS, _TIMBRE_HZ = 1.2, 6.0, 6, (100.0, 8000.0)
_FFT_STEP = 2048


def drawn_voice(random: np.random.Generator, variants: tuple[str, ...]) -> Voice:
    """Return a voice of one of some variants, with an accent, a speed and a pitch."""
    return Voice(
        f"{random.choice(ACCENTS)}+{random.choice(variants)}",
        words_per_minute=int(random.integers(130, 211)),
        pitch=int(random.integers(30, 71)),
        liveliness=int(random.integers(20, 81)),
    )


def otherwise(said: Samples, random: np.random.Generator, highest: float = _HIGHER) -> tuple[Samples, float]:
    """Return speech as by a speaker with a longer or shorter throat and another timbre.

    Args:
        said: [samples], 16 kHz.
        random: of the speaker: formants, pitch and speed are 1 / 1.2 to `highest` of what they were, and the
            loudness of frequencies differs by up to 6 dB, smoothly.
        highest: 1.2 or more; a small child's are 1.4 times a woman's.

    Returns:
        [samples], peak 0.5, and how many times as long it is.
    """
    stretched = float(np.exp(random.uniform(-np.log(highest), np.log(_HIGHER))))
    samples = soxr.resample(said, SAMPLE_RATE_HZ, SAMPLE_RATE_HZ * stretched, quality="MQ")
    # Sizes with a large prime factor take several times as long.
    size = -(-samples.size // _FFT_STEP) * _FFT_STEP
    spectrum = np.fft.rfft(samples, size)
    points_hz = np.geomspace(*_TIMBRE_HZ, _TIMBRE_POINTS)
    frequencies_hz = np.linspace(0, SAMPLE_RATE_HZ / 2, spectrum.size).clip(*_TIMBRE_HZ)
    gains_db = random.uniform(-_TIMBRE_DB, _TIMBRE_DB, _TIMBRE_POINTS)
    spectrum *= 10 ** (np.interp(np.log(frequencies_hz), np.log(points_hz), gains_db) / 20)
    samples = np.fft.irfft(spectrum, size)[: samples.size]
    return np.asarray(samples / np.abs(samples).max() * 0.5, np.float32), stretched
