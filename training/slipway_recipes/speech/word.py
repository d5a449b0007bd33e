"""Recipe of a ready wake word: synthetic recordings, then the same training as for any user's word.

The word is measured on streams: the word at random moments by voices that no training heard, hours of other
speech by these voices, and hours of noise.
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

from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.wakeword.family import FAMILY, MODEL_FILE
from slipway_export.families.wakeword.features import Features
from slipway_export.families.wakeword.head_file import read_head
from slipway_export.families.wakeword.network import ServedHead, load_backbone
from slipway_recipes.card import Card
from slipway_recipes.recipe import Making, Recipe
from slipway_recipes.speech.espeak import Samples, Voice, say
from slipway_recipes.speech.rooms import echoed, noisy
from slipway_recipes.speech.streams import spoken, words
from slipway_recipes.speech.voices import HEARD, UNHEARD, otherwise
from slipway_serving.families.wakeword.audio import loudness
from slipway_serving.families.wakeword.audio_limits import is_silent
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ
from slipway_serving.families.wakeword.stream import FULL_SCALE, AudioStreamState
from slipway_serving.system.temporary_folders import TemporaryFolder
from slipway_training.clips import noise_of
from slipway_training.wakeword import TrainOptions, train

WORD = "slipway"
# Files of an example: a recording by an unheard voice, and start and end (seconds) and text of its parts.
EXAMPLE_FILE, LABELS_FILE = "said.ogg", "said.txt"
_EXAMPLE = (
    *("good morning", "we sit in the harbor", WORD, "what is the weather", "a ship", WORD),
    "and play some music",
)
_EXAMPLE_VOICE = Voice(f"gmw/en-US+{UNHEARD[0]}", words_per_minute=150)
_EXAMPLE_PAUSE = SAMPLE_RATE_HZ // 2
_SAID, _MINUTES, _NOISE_MINUTES = 1600, 200, 30
JUDGED, _JUDGED_MINUTES, _JUDGED_NOISE_MINUTES = 600, 192, 48
# Share of the recordings whose speaker is none of the few variants, and the largest factor of such a
# speaker's pitch, which makes some voices as high as children's.
_OTHER_SPEAKERS, _HIGHEST = 0.6, 1.45
# Share of the held-out windows without the word; an hour has 7,200 windows.
_MAX_FALSE_ACCEPTS = 0.00015
# The learning rate falls to 0 over these epochs.
_EPOCHS = 12
COOLDOWN_S, _MINUTE_S, _WINDOWS_AT_ONCE = 1.0, 60.0, 8
# Seed of the measurements. No training uses this seed, so no training draws the same examples.
_UNSEEN = 2**63


def make(making: Making) -> None:
    """Record the word and other speech, train the word as a user does, and write its weights file."""
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
    """Write a copy of a word's weights file in half precision, which loads like any other."""
    saved = torch.load(trained, weights_only=True)
    weights = saved["classifier_state_dict"]
    torch.save(saved | {"classifier_state_dict": {name: each.half() for name, each in weights.items()}}, kept)


def write_example(folder: Path, random: np.random.Generator) -> None:
    """Write an example recording in a quiet room, and the times of its texts as Audacity labels."""
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
    """Write recordings like a user's: the word in rooms, and minutes of other speech and noise."""
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
    """Return a spoken text in a room, [samples], with 0.3 to 1 s before it and after it.

    Args:
        text: Text to say.
        random: Generator of all choices.
        variants: Variants of the voices.
        others: Probability of a speaker other than the variants; see :func:`otherwise`.
    """
    said, _ = spoken([text], random, variants)
    if random.random() < others:
        said, _ = otherwise(said, random, _HIGHEST)
    before, after = (np.zeros(int(random.uniform(0.3, 1.0) * SAMPLE_RATE_HZ), np.float32) for _ in range(2))
    return noisy(echoed(np.concatenate([before, said, after]), random), random)


def minute_of_speech(random: np.random.Generator, variants: tuple[str, ...], others: float = 0.0) -> Samples:
    """Return a minute of speech by one voice in a room, in phrases of 1, 3 or 10 words.

    Args:
        random: Generator of all choices.
        variants: Variants of the voices.
        others: Probability of speakers other than the variants, who change every ten phrases.
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
    """Backbone and head of a word in this process, which process streams as the served models do.

    Args:
        features: Feature extractor of the backbone's checkpoint.
        backbone: Backbone in eval mode.
        head: Head as it is served.
    """

    features: Features
    backbone: torch.nn.Module
    head: ServedHead

    def probabilities(self, samples: Samples) -> NDArray[np.float32]:
        """Return the probability of the word in each window of a stream, [windows], 0 for silent windows."""
        windows, _ = AudioStreamState((), COOLDOWN_S).feed((samples * (FULL_SCALE - 1)).astype(np.int16))
        judged = []
        with torch.inference_mode():
            for start in range(0, len(windows), _WINDOWS_AT_ONCE):
                values, rms = self.features(torch.from_numpy(windows[start : start + _WINDOWS_AT_ONCE]))
                probability = self.head(self.backbone(values))[1].numpy()
                judged.append(np.where([is_silent(float(each)) for each in rms], 0, probability))
        return np.concatenate(judged).astype(np.float32) if judged else np.zeros(0, np.float32)

    def events(self, samples: Samples) -> int:
        """Return the number of detections of the word in a stream, at most one per second."""
        threshold = float(self.head.constant)
        listening = AudioStreamState((), COOLDOWN_S)
        times_s = 1.0 + 0.5 * np.flatnonzero(self.probabilities(samples) >= threshold)
        return sum(listening.is_event(WORD, float(time_s)) for time_s in times_s)


def ear(folder: Path) -> Ear:
    """Load the word of a folder together with the demo backbone."""
    saved = read_head(folder / MODEL_FILE, str(folder))
    with open_checkpoint(FAMILY, "demo") as checkpoint:
        features = Features(ASTFeatureExtractor.from_pretrained(checkpoint.path)).eval()
        backbone = load_backbone(checkpoint.path, checkpoint.source)
    return Ear(features, backbone, ServedHead(saved.network(), saved.threshold))


def measure(folder: Path) -> dict[str, float]:
    """Measure the word of a folder on the demo backbone; see :func:`figures`."""
    return figures(ear(folder).events)


def figures(events: Callable[[Samples], int], scale: float = 1.0) -> dict[str, float]:
    """Return the share of missed words of unheard voices, and the false accepts per hour.

    Args:
        events: Function that returns the number of detections in a stream, [samples] at 16 kHz.
        scale: Share of the 600 words and the four hours to judge.
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
