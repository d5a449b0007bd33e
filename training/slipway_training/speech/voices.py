"""Who speaks: espeak-ng's accents and variants, divided into those of trainings and those that judge them."""

from __future__ import annotations

import numpy as np

from slipway_training.speech.espeak import Voice

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


def drawn_voice(random: np.random.Generator, variants: tuple[str, ...]) -> Voice:
    """Return a voice of one of some variants, with an accent, a speed and a pitch."""
    return Voice(
        f"{random.choice(ACCENTS)}+{random.choice(variants)}",
        words_per_minute=int(random.integers(130, 211)),
        pitch=int(random.integers(30, 71)),
        liveliness=int(random.integers(20, 81)),
    )
