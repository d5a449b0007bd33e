"""A scene's subject in words, as a caption for training or a prompt for a test.

People say the same in several ways, so captions do too; the plain one names all four words in their order.
"""

from __future__ import annotations

import numpy as np

from slipway_training.shapes.scenes import Subject, subjects

_SAID = {
    "moves to the right": ("moves to the right", "moves right", "slides to the right", "goes right"),
    "moves to the left": ("moves to the left", "moves left", "slides to the left", "goes left"),
    "moves up": ("moves up", "rises", "goes up"),
    "moves down": ("moves down", "falls", "goes down"),
    "bounces to the right": ("bounces to the right", "bounces right", "hops to the right"),
    "bounces to the left": ("bounces to the left", "bounces left", "hops to the left"),
    "turns": ("turns", "rotates", "spins"),
    "grows": ("grows", "gets bigger", "appears"),
    "shrinks": ("shrinks", "gets smaller", "vanishes"),
}
# How often a caption says less than everything, or says it in another way than the plain one.
_WITHOUT_GROUND, _GROUND_FIRST, _OTHER_WORDS = 0.1, 0.15, 0.4


def plain(subject: Subject) -> str:
    """Return the plain caption: "a red ball bounces to the right on grass"."""
    return f"{_article(subject.colour)} {subject.colour} {subject.shape} {subject.motion} on {subject.ground}"


def caption(random: np.random.Generator, subject: Subject) -> str:
    """Return a caption in one of the ways in which people might say it."""
    said = _SAID[subject.motion]
    motion = said[int(random.integers(len(said)))] if random.random() < _OTHER_WORDS else subject.motion
    what = f"{_article(subject.colour)} {subject.colour} {subject.shape} {motion}"
    way = random.random()
    if way < _WITHOUT_GROUND:
        return what
    if way < _WITHOUT_GROUND + _GROUND_FIRST:
        return f"on {subject.ground}, {what}"
    return f"{what} on {subject.ground}"


def examples(count: int = 1000) -> list[str]:
    """Return captions of subjects drawn by chance, in every wording, for a tokenizer to learn."""
    random = np.random.default_rng(0)
    choice = subjects(unseen=False)
    said = [caption(random, choice[int(place)]) for place in random.integers(len(choice), size=count)]
    # Sentencepiece takes a word for a piece only where it meets it with different signs beside it.
    words = sorted(set(" ".join(said).replace(",", "").split()))
    return [*said, *(f"{sign} ".join(words) for sign in ",.")]


def _article(colour: str) -> str:
    return "an" if colour[0] in "aeiou" else "a"
