"""Captions of a scene's subject, for training and as prompts for tests.

People say the same thing in several ways, and so do the captions. The plain caption names all four words in
their order.
"""

from __future__ import annotations

import numpy as np

from slipway_loadtests.pictures.scenes import COLOURS, GROUNDS, SHAPES, Subject, subjects

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
# Shares of captions that omit the ground, name it first, or use other words than the plain caption.
_WITHOUT_GROUND, _GROUND_FIRST, _OTHER_WORDS = 0.1, 0.15, 0.4


def plain(subject: Subject) -> str:
    """Return the plain caption: "a red ball bounces to the right on grass"."""
    return f"{_article(subject.colour)} {subject.colour} {subject.shape} {subject.motion} on {subject.ground}"


def caption(random: np.random.Generator, subject: Subject) -> str:
    """Return a caption in a random wording."""
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
    """Return captions of random subjects, in every wording, to train a tokenizer on."""
    random = np.random.default_rng(0)
    choice = subjects(unseen=False)
    said = [caption(random, choice[int(place)]) for place in random.integers(len(choice), size=count)]
    # SentencePiece makes a word a piece of its own only if it occurs next to different characters.
    words = sorted(set(" ".join(said).replace(",", "").split()))
    return [*said, *(f"{sign} ".join(words) for sign in ",.")]


def known_words() -> list[str]:
    """Return every word that a caption may have: colours, shapes, motions, grounds, and small words."""
    motions = [wording for wordings in _SAID.values() for wording in wordings]
    texts = [*COLOURS, *SHAPES, *motions, *GROUNDS, "a an on"]
    return list(dict.fromkeys(" ".join(texts).split()))


def _article(colour: str) -> str:
    return "an" if colour[0] in "aeiou" else "a"
