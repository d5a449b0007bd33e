"""Windows of one second of synthetic speech, labelled with the words that they contain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway_recipes.speech.espeak import Samples, say
from slipway_recipes.speech.rooms import echoed, noisy
from slipway_recipes.speech.voices import HEARD, drawn_voice, otherwise
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ
from slipway_training.clips import WINDOW_SAMPLES

# Share of a word that a window must contain to be labelled with it.
_WHOLE = 0.85
_NOISE_SHARE, _ECHO_SHARE, _BEHIND_SHARE = 0.05, 0.6, 0.25
# Largest distance of the window's middle from that of a word, in samples.
_ASIDE = 5000
# Share of spoken words that are drawn from all words. Words the network does not classify are negatives.
_OTHERS_SHARE = 0.15
_WORDS_FILE = Path(__file__).with_name("words.txt")


@cache
def words() -> tuple[str, ...]:
    """Return all words that the voices say."""
    return tuple(_WORDS_FILE.read_text(encoding="utf-8").split())


def spoken(
    texts: list[str], random: np.random.Generator, variants: tuple[str, ...] = HEARD
) -> tuple[Samples, list[tuple[int, int]]]:
    """Synthesize texts one after the other in one voice, with pauses of up to 0.4 s.

    Returns:
        Samples, [samples], 16 kHz, and the start and end of each text as sample indices, end exclusive.
    """
    voice = drawn_voice(random, variants)
    parts: list[Samples] = []
    places = []
    done = 0
    for text in texts:
        pause = np.zeros(int(random.uniform(0, 0.4) ** 1.5 * SAMPLE_RATE_HZ), np.float32)
        said = say(text, voice)
        places.append((done + pause.size, done + pause.size + said.size))
        parts += [pause, said]
        done = places[-1][1]
    return np.concatenate(parts), places


def window(
    random: np.random.Generator,
    told: Sequence[str],
    variants: tuple[str, ...] = HEARD,
    hardness: float = 1.0,
) -> tuple[Samples, list[int]]:
    """Return a second of speech, or of noise alone, and the words that it contains.

    Args:
        random: Generator of all choices.
        told: Words that the network classifies, some or all of :func:`words`.
        variants: Variants of the voices.
        hardness: Share of realistic windows, with rooms and noise. The others contain one whole word in
            silence.

    Returns:
        Samples, [16000], and indices into `told`.
    """
    if random.random() < _NOISE_SHARE:
        return noisy(np.zeros(WINDOW_SAMPLES, np.float32), random), []
    easy = random.random() >= hardness
    saying = _said(random, told, variants, 1 if easy else int(random.integers(1, 4)))
    if easy:
        return _around(saying, told, random, aside=0)
    return _heard(saying, told, random, variants)


def hearings(random: np.random.Generator, told: Sequence[str], count: int) -> list[tuple[Samples, list[int]]]:
    """Return windows as :func:`window` does, with each utterance by two speakers in two rooms.

    This halves the synthesis time. Each speaker is an espeak-ng voice with changed formants and timbre,
    because espeak-ng's variants are too few for a network to learn what all voices share.

    Args:
        random: Generator of all choices.
        told: Words that the network classifies.
        count: Number of windows.
    """
    found: list[tuple[Samples, list[int]]] = []
    while len(found) < count:
        if random.random() < _NOISE_SHARE:
            found.append((noisy(np.zeros(WINDOW_SAMPLES, np.float32), random), []))
            continue
        saying = _said(random, told, HEARD, int(random.integers(1, 4)))
        found += [_heard(_by_another(saying, random), told, random, HEARD) for _ in range(2)]
    return found[:count]


@dataclass(frozen=True)
class _Saying:
    """Utterance of one or more words.

    Args:
        samples: Samples, [samples], 16 kHz.
        words: Words in their order.
        places: Start and end of each word as sample indices, end exclusive.
    """

    samples: Samples
    words: Sequence[str]
    places: Sequence[tuple[int, int]]


def _said(random: np.random.Generator, told: Sequence[str], variants: tuple[str, ...], count: int) -> _Saying:
    known = random.random(count) >= _OTHERS_SHARE
    chosen = [str(random.choice(told if each else words())) for each in known]
    samples, places = spoken(chosen, random, variants)
    return _Saying(samples, chosen, places)


def _by_another(saying: _Saying, random: np.random.Generator) -> _Saying:
    """Return the utterance as by another speaker; see :func:`otherwise`."""
    samples, stretched = otherwise(saying.samples, random)
    places = [(round(begin * stretched), round(end * stretched)) for begin, end in saying.places]
    return _Saying(samples, saying.words, places)


def _around(
    saying: _Saying, told: Sequence[str], random: np.random.Generator, aside: int
) -> tuple[Samples, list[int]]:
    """Return a second of the utterance around the middle of a random word, and the words it contains."""
    begin, end = saying.places[int(random.integers(len(saying.places)))]
    start = (begin + end - WINDOW_SAMPLES) // 2 + int(random.integers(-aside, aside + 1))
    around = np.zeros(WINDOW_SAMPLES, np.float32)
    first, last = max(start, 0), min(start + WINDOW_SAMPLES, saying.samples.size)
    around[first - start : last - start] = saying.samples[first:last]
    held = [
        told.index(word)
        for word, (begin, end) in zip(saying.words, saying.places, strict=True)
        if word in told and min(end, last) - max(begin, first) >= _WHOLE * (end - begin)
    ]
    return around, held


def _heard(
    saying: _Saying, told: Sequence[str], random: np.random.Generator, variants: tuple[str, ...]
) -> tuple[Samples, list[int]]:
    """Return a second of the utterance in a room, and the words it contains."""
    around, held = _around(saying, told, random, _ASIDE)
    if random.random() < _ECHO_SHARE:
        around = echoed(around, random)
    behind = None
    if random.random() < _BEHIND_SHARE:
        other, _ = spoken([str(random.choice(words()))], random, variants)
        behind = np.resize(other, WINDOW_SAMPLES)
    return noisy(around, random, behind), held


def targets(held: list[list[int]], words_told: int) -> NDArray[np.float32]:
    """Return target distributions of windows: equal shares for their words, or the class of no word.

    Args:
        held: Words of each window, as :func:`window` returns them.
        words_told: Number of words that the network classifies.

    Returns:
        Targets, [windows, words_told + 1], float32. Rows sum to 1, and the last column is the class of no
        word.
    """
    wanted = np.zeros((len(held), words_told + 1), np.float32)
    for row, indices in zip(wanted, held, strict=True):
        row[indices or [-1]] = 1 / max(len(set(indices)), 1)
    return wanted
