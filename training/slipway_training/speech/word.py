"""The recipe of a ready word: recordings by a program's voices, then the training that any user's word gets.

What it reaches is measured as a stream hears it: words that voices which no training heard say at any moment,
and hours of other speech of theirs, and of noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from transformers import ASTFeatureExtractor

from slipway_export.checkpoint import open_checkpoint
from slipway_export.families.wakeword import FAMILY, MODEL_FILE
from slipway_export.modeling.wakeword import ServedHead, load_backbone, read_head
from slipway_export.modeling.wakeword_features import Features
from slipway_serving.temporary_folders import TemporaryFolder
from slipway_serving.wakeword.audio import loudness
from slipway_serving.wakeword.hearing import is_silent
from slipway_serving.wakeword.request import SAMPLE_RATE_HZ
from slipway_serving.wakeword.stream import FULL_SCALE, Listening
from slipway_training.card import Card
from slipway_training.clips import noise_of
from slipway_training.recipe import Making, Recipe
from slipway_training.speech.espeak import Samples, Voice, say
from slipway_training.speech.rooms import echoed, noisy
from slipway_training.speech.streams import spoken, words
from slipway_training.speech.voices import HEARD, UNHEARD, otherwise
from slipway_training.wakeword import TrainOptions, train

WORD = "slipway"
# To try the word: somebody whom no training heard says these, and begin, end and text of each, seconds.
EXAMPLE_FILE, LABELS_FILE = "said.ogg", "said.txt"
_EXAMPLE = (
    *("good morning", "we sit in the harbor", WORD, "what is the weather", "a ship", WORD),
    "and play some music",
)
_EXAMPLE_VOICE = Voice(f"gmw/en-US+{UNHEARD[0]}", words_per_minute=150)
_EXAMPLE_PAUSE = SAMPLE_RATE_HZ // 2
_SAID, _MINUTES, _NOISE_MINUTES = 1600, 200, 30
JUDGED, _JUDGED_MINUTES, _JUDGED_NOISE_MINUTES = 600, 192, 48
# Of the recordings, as many are by speakers who are none of the variants, which are few; some are as high as
# children.
_OTHER_SPEAKERS, _HIGHEST = 0.6, 1.45
# Of the held-out windows without the word, of which an hour has 7,200.
_MAX_FALSE_ACCEPTS = 0.00015
# Over which the learning rate falls to nothing.
_EPOCHS = 12
COOLDOWN_S, _MINUTE_S, _WINDOWS_AT_ONCE = 1.0, 60.0, 8
# Trainings draw from their seed; this is no seed that one is given.
_UNSEEN = 2**63


def make(making: Making) -> None:
    """Record the word and other speech, train the word as a user does, and keep its file."""
    with TemporaryFolder("slipway-training-word-") as place:
        making.report(f"{WORD}: recording")
        record(place, np.random.default_rng([making.seed, 0]), making.scale)
        options = TrainOptions(
            name=WORD,
            positive=place / "positive",
            negative=place / "negative",
            backbone="demo",
            models=place / "trained",
            max_false_accepts=_MAX_FALSE_ACCEPTS,
            epochs=_EPOCHS,
            anneal=True,
            seed=making.seed,
        )
        trained = train(FAMILY, options, making.report)
        making.output.mkdir(parents=True, exist_ok=True)
        keep_in_half(trained.folder / MODEL_FILE, making.output / MODEL_FILE)
    write_example(making.output, np.random.default_rng([making.seed, 1]))


def keep_in_half(trained: Path, kept: Path) -> None:
    """Write a word's file with its weights in half precision, which are read as any others."""
    saved = torch.load(trained, weights_only=True)
    weights = saved["classifier_state_dict"]
    torch.save(saved | {"classifier_state_dict": {name: each.half() for name, each in weights.items()}}, kept)


def write_example(folder: Path, random: np.random.Generator) -> None:
    """Write a recording in a quiet room to try the word with, and what is said when, as Audacity's labels."""
    parts, labels, done = [], [], 0
    for text in _EXAMPLE:
        said = say(text, _EXAMPLE_VOICE)
        begin = done + _EXAMPLE_PAUSE
        parts += [np.zeros(_EXAMPLE_PAUSE, np.float32), said]
        done = begin + said.size
        labels.append(f"{begin / SAMPLE_RATE_HZ:.3f}\t{done / SAMPLE_RATE_HZ:.3f}\t{text}\n")
    heard = echoed(np.pad(np.concatenate(parts), (0, _EXAMPLE_PAUSE)), random)
    heard += 0.05 * loudness(heard) * noise_of(heard.size, random)
    _write(folder / EXAMPLE_FILE, heard, "VORBIS")
    (folder / LABELS_FILE).write_text("".join(labels), encoding="utf-8")


def record(folder: Path, random: np.random.Generator, scale: float = 1.0) -> None:
    """Write what a user would record: the word, said in rooms, and minutes of anything else."""
    for kind in ("positive", "negative"):
        (folder / kind).mkdir()
    for number in range(max(8, round(scale * _SAID))):
        _write(
            folder / f"positive/{number}.flac", said_in_a_room(WORD, random, HEARD, others=_OTHER_SPEAKERS)
        )
    for number in range(max(8, round(scale * _MINUTES))):
        _write(
            folder / f"negative/speech-{number}.flac", minute_of_speech(random, HEARD, others=_OTHER_SPEAKERS)
        )
    for number in range(max(1, round(scale * _NOISE_MINUTES))):
        _write(folder / f"negative/noise-{number}.flac", minute_of_noise(random))


def said_in_a_room(
    text: str, random: np.random.Generator, variants: tuple[str, ...], others: float = 0.0
) -> Samples:
    """Return a text that somebody says in a room, with up to a second before it and after it, [samples].

    Args:
        text: that is said.
        random: of all of it.
        variants: of the voices.
        others: how likely it is a speaker who is none of them; see :func:`otherwise`.
    """
    said, _ = spoken([text], random, variants)
    if random.random() < others:
        said, _ = otherwise(said, random, _HIGHEST)
    before, after = (np.zeros(int(random.uniform(0.3, 1.0) * SAMPLE_RATE_HZ), np.float32) for _ in range(2))
    return noisy(echoed(np.concatenate([before, said, after]), random), random)


def minute_of_speech(random: np.random.Generator, variants: tuple[str, ...], others: float = 0.0) -> Samples:
    """Return a minute of a voice in a room, saying words one by one or in long breaths.

    Args:
        random: of all of it.
        variants: of the voices.
        others: how likely it is speakers who are none of them, another one every ten breaths.
    """
    known, breath = words(), int(random.choice([1, 3, 10]))
    other = random.random() < others
    said = np.zeros(0, np.float32)
    while said.size < _MINUTE_S * SAMPLE_RATE_HZ:
        texts = [" ".join(random.choice(known, breath)) for _ in range(10)]
        part = spoken(texts, random, variants)[0]
        said = np.concatenate([said, otherwise(part, random, _HIGHEST)[0] if other else part])
    return noisy(echoed(said[: round(_MINUTE_S * SAMPLE_RATE_HZ)], random), random)


def minute_of_noise(random: np.random.Generator) -> Samples:
    """Return a minute of noise that swells and fades."""
    size = round(_MINUTE_S * SAMPLE_RATE_HZ)
    swell = np.interp(np.arange(size), np.linspace(0, size, 30), random.uniform(0.05, 1, 30))
    return np.asarray(noisy(np.zeros(size, np.float32), random) * swell, np.float32)


@dataclass(frozen=True)
class Ear:
    """A backbone and a word's head in this process, which hear streams as the served models do.

    Args:
        features: of the backbone's checkpoint.
        backbone: in eval mode.
        head: as served.
    """

    features: Features
    backbone: torch.nn.Module
    head: ServedHead

    def probabilities(self, samples: Samples) -> NDArray[np.float32]:
        """Return the probability of the word in each window of a stream, [windows]; 0 in silent ones."""
        windows, _ = Listening((), COOLDOWN_S).feed((samples * (FULL_SCALE - 1)).astype(np.int16))
        judged = []
        with torch.inference_mode():
            for start in range(0, len(windows), _WINDOWS_AT_ONCE):
                values, rms = self.features(torch.from_numpy(windows[start : start + _WINDOWS_AT_ONCE]))
                probability = self.head(self.backbone(values))[1].numpy()
                judged.append(np.where([is_silent(float(each)) for each in rms], 0, probability))
        return np.concatenate(judged).astype(np.float32) if judged else np.zeros(0, np.float32)

    def events(self, samples: Samples) -> int:
        """Return how often the word is detected in a stream, once within a second."""
        threshold = float(self.head.constant)
        listening = Listening((), COOLDOWN_S)
        times_s = 1.0 + 0.5 * np.flatnonzero(self.probabilities(samples) >= threshold)
        return sum(listening.is_event(WORD, float(time_s)) for time_s in times_s)


def ear(folder: Path) -> Ear:
    """Return the ear of a word's folder, on the demo backbone."""
    saved = read_head(folder / MODEL_FILE, str(folder))
    with open_checkpoint(FAMILY, "demo") as checkpoint:
        features = Features(ASTFeatureExtractor.from_pretrained(checkpoint.path)).eval()
        backbone = load_backbone(checkpoint.path, checkpoint.source)
    return Ear(features, backbone, ServedHead(saved.network(), saved.threshold))


def measure(folder: Path) -> dict[str, float]:
    """Return what :func:`figures` says of a word's folder on the demo backbone."""
    return figures(ear(folder).events)


def figures(events: Callable[[Samples], int], scale: float = 1.0) -> dict[str, float]:
    """Return how often unheard voices' word is missed, and how often an hour something else is taken for it.

    Args:
        events: returns how often the word is detected in a stream, [samples] at 16 kHz.
        scale: share of the 600 words and of the four hours that are judged.
    """

    def drawn(kind: int, count: int) -> Iterator[np.random.Generator]:
        return (np.random.default_rng([_UNSEEN, kind, each]) for each in range(max(1, round(scale * count))))

    missed = [not events(said_in_a_room(WORD, each, UNHEARD)) for each in drawn(1, JUDGED)]
    speech = [events(minute_of_speech(each, UNHEARD)) for each in drawn(2, _JUDGED_MINUTES)]
    noise = [events(minute_of_noise(each)) for each in drawn(3, _JUDGED_NOISE_MINUTES)]
    hours = (len(speech) + len(noise)) / 60
    return {
        "false_rejects": float(np.mean(missed)),
        "false_accepts_an_hour": (sum(speech) + sum(noise)) / hours,
        "words": float(len(missed)),
        "hours": hours,
    }


def _write(path: Path, samples: Samples, subtype: str = "PCM_16") -> None:
    soundfile.write(path, samples, SAMPLE_RATE_HZ, subtype=subtype)


CARD = Card(
    title=f'The wake word "{WORD}"',
    is_of=(
        f'A head in WakeBuilder\'s layout for the word "{WORD}", on the demo backbone of `wakeword`, no'
        f" optional blocks. In `{EXAMPLE_FILE}` a voice no training heard says it twice among other things;"
        f" `{LABELS_FILE}` says when."
    ),
    data=(
        f"espeak-ng's voices, those that the backbone heard too: the word {_SAID} times, {_MINUTES} minutes"
        f" of other words and {_NOISE_MINUTES} of noise, in rooms. {_OTHER_SPEAKERS:.0%} is as by other"
        f" speakers, with formants, pitch and speed of 0.83 to {_HIGHEST:g} times theirs and other timbres."
        " No recording of anyone."
    ),
    training=(
        "As any word's (`slipway train wakeword`), with the default variations and `--max-false-accepts"
        f" {_MAX_FALSE_ACCEPTS:g} --epochs {_EPOCHS} --anneal`. Ten minutes."
    ),
    results={
        "false_rejects": "share of the words of unheard voices that a stream misses",
        "false_accepts_an_hour": "detections an hour in other speech of unheard voices, and in noise",
        "words": "words judged",
        "hours": "hours judged, four fifths of them speech",
    },
    limits="Synthetic speech only: how it hears people has not been measured.",
)

RECIPE = Recipe(
    family="wakeword_head",
    summary=f'the word "{WORD}" on the demo backbone, as a user trains one',
    hours=0.1,
    make=make,
    measure=measure,
    card=CARD,
)
