"""Recipe of the wake word backbone: an AST learns which words a second of speech contains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import ASTConfig, ASTFeatureExtractor, ASTForAudioClassification

from slipway_recipes.card import Card
from slipway_recipes.fitting import Schedule, fit
from slipway_recipes.recipe import Making, Recipe
from slipway_recipes.speech.espeak import Samples
from slipway_recipes.speech.features import QuickFeatures
from slipway_recipes.speech.streams import hearings, targets, window, words
from slipway_recipes.speech.voices import UNHEARD

CONFIG = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_length": 128,
    "num_mel_bins": 64,
    "frequency_stride": 16,
    "time_stride": 10,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
PREPROCESSOR = {"max_length": 128, "num_mel_bins": 64, "mean": -2.5, "std": 3.3}
# Training begins with few words: from random weights, it would learn all words too slowly.
FEW_WORDS = words()[::6]
FEW_SCHEDULE = Schedule(steps=6000, learning_rate=1e-3, warmup=50, weight_decay=1e-2, ema=0.99)
ALL_SCHEDULE = Schedule(steps=7000, learning_rate=8e-4, warmup=200, weight_decay=1e-2, ema=0.998)
# The last training repeats all words, with speakers other than espeak-ng's variants.
SPEAKERS_SCHEDULE = Schedule(steps=3600, learning_rate=8e-4, warmup=100, weight_decay=1e-2, ema=0.998)
# In the first training, all windows are easy up to the first share of the steps, and all are realistic from
# the second share on.
_EASY_SHARES = (0.2, 0.7)
_BATCH, _FEATURES_AT_ONCE = 64, 8
_JUDGED = 1000
# Seed of the measurements. No training uses this seed, so no training draws the same examples.
_UNSEEN = 2**63
CARD = Card(
    title="AST for wake words, trained on synthetic speech",
    is_of=(
        "An Audio Spectrogram Transformer in the layout of transformers: 4 layers"
        " of 128, 64 mel bands, 1.28 s, weights in half precision. It tells which of 788 English words a"
        " second of speech holds; its embedding is the backbone on which the heads of wake words are trained."
    ),
    data=(
        "espeak-ng's voices: 66 variants in 6 English accents, at many speeds and pitches, one to three words"
        " at a time, with echoes, noise of many colours and other speech behind them; in the end also as by"
        " other speakers, with formants, pitch and speed of 0.83 to 1.2 times theirs and other timbres. 18"
        " variants are left out, for judging. No recording of anyone."
    ),
    training=(
        "AdamW on the cross-entropy of the words that a window holds, of"
        f" {len(FEW_WORDS)} words first ({FEW_SCHEDULE.steps:,} steps), then of all"
        f" ({ALL_SCHEDULE.steps:,}), then of all by other speakers ({SPEAKERS_SCHEDULE.steps:,}). An hour and"
        " three quarters on a CPU core, by the pace of its steps."
    ),
    results={
        "word_accuracy": "words told, of 788, by unheard voices in noise and rooms",
        "among_five": "words among the five likeliest",
    },
    limits=(
        "Synthetic speech only: how it hears people has not been measured, and the embedding knows English"
        " words said by a machine. Windows of a second."
    ),
)


@dataclass(frozen=True)
class _Trainer:
    """Loss of a training step, on newly drawn windows.

    Args:
        features: Feature extractor with the settings of the checkpoint's preprocessor.
        told: Words that the network classifies.
        seed: Seed of the windows.
        easy: Step up to which all windows are easy, and step from which all are realistic.
        speakers: True if speakers other than espeak-ng's variants say the words; then no window is easy.
    """

    features: QuickFeatures
    told: tuple[str, ...]
    seed: int
    easy: tuple[float, float] = (-1.0, 0.0)
    speakers: bool = False

    def loss(self, network: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng([self.seed, len(self.told) + self.speakers, step])
        if self.speakers:
            drawn = hearings(random, self.told, _BATCH)
        else:
            hardness = float(np.interp(step, self.easy, (0.0, 1.0)))
            drawn = [window(random, self.told, hardness=hardness) for _ in range(_BATCH)]
        heard, held = zip(*drawn, strict=True)
        device = next(network.parameters()).device
        logits = network(_values(self.features, heard).to(device)).logits
        wanted = targets(list(held), len(self.told))
        return functional.cross_entropy(logits, torch.from_numpy(wanted).to(device))


def _values(features: QuickFeatures, heard: Sequence[Samples]) -> Tensor:
    """Return the features of windows, a few at a time, since larger batches exceed the processor's caches."""
    windows = torch.from_numpy(np.stack(heard))
    starts = range(0, len(windows), _FEATURES_AT_ONCE)
    return torch.cat([features(windows[start : start + _FEATURES_AT_ONCE]) for start in starts])


def make(making: Making) -> None:
    """Train on few words, all words and other speakers, and write the checkpoint in half precision.

    The checkpoint has the layout of transformers.
    """
    making.output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(making.seed)
    extractor = ASTFeatureExtractor(**PREPROCESSOR)
    features = QuickFeatures(extractor)
    easy = tuple(share * making.steps_of(FEW_SCHEDULE.steps) for share in _EASY_SHARES)
    first = _Trainer(features, FEW_WORDS, making.seed, (easy[0], easy[1]))
    few = fit(_network(FEW_WORDS), first.loss, FEW_SCHEDULE, making, "few_words")
    assert isinstance(few, ASTForAudioClassification)
    network = _network(words())
    network.audio_spectrogram_transformer.load_state_dict(few.audio_spectrogram_transformer.state_dict())
    every = fit(network, _Trainer(features, words(), making.seed).loss, ALL_SCHEDULE, making, "all_words")
    speakers = _Trainer(features, words(), making.seed, speakers=True)
    trained = fit(every.train(), speakers.loss, SPEAKERS_SCHEDULE, making, "speakers")
    assert isinstance(trained, ASTForAudioClassification)
    trained.half().save_pretrained(making.output)
    extractor.save_pretrained(making.output)


def _network(told: tuple[str, ...]) -> ASTForAudioClassification:
    """Return an untrained network that classifies words."""
    labels = dict(enumerate((*told, "(none)")))
    config = ASTConfig(**CONFIG, id2label=labels, label2id={name: index for index, name in labels.items()})
    network = ASTForAudioClassification(config)
    # With transformers' initial values (tokens and positions 0, linear layers 0.02), a network learns little.
    embeddings = network.audio_spectrogram_transformer.embeddings
    for parameter in (embeddings.cls_token, embeddings.distillation_token, embeddings.position_embeddings):
        nn.init.normal_(parameter, std=0.1)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return network


def measure(folder: Path) -> dict[str, float]:
    """Return the accuracy on words of unheard voices, over windows that contain one word."""
    network = ASTForAudioClassification.from_pretrained(folder, dtype=torch.float32).eval()
    features = QuickFeatures(ASTFeatureExtractor.from_pretrained(folder))
    random = np.random.default_rng([_UNSEEN, 0])
    right: list[bool] = []
    five: list[bool] = []
    while len(right) < _JUDGED:
        drawn = [window(random, words(), UNHEARD) for _ in range(_BATCH)]
        heard, held = zip(*(each for each in drawn if len(each[1]) == 1), strict=True)
        with torch.no_grad():
            logits = network(_values(features, heard)).logits
        best = logits.topk(5).indices
        wanted = torch.tensor([indices[0] for indices in held])[:, None]
        right += (best[:, :1] == wanted).any(dim=1).tolist()
        five += (best == wanted).any(dim=1).tolist()
    return {"word_accuracy": float(np.mean(right)), "among_five": float(np.mean(five))}


RECIPE = Recipe(
    family="wakeword",
    summary="an AST of 0.7 million parameters on words that espeak-ng says in many voices and rooms",
    hours=1.7,
    make=make,
    measure=measure,
    card=CARD,
)
