"""A tiny backbone with three words, exported once for a test run, and what its networks say of audio."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import torch
from filelock import FileLock
from tiny_exports import checkpoint_once, exported_once
from transformers import ASTFeatureExtractor, ASTModel

from slipway_export.families import family_named
from slipway_export.families.wakeword.family import TINY_CONFIG
from slipway_export.families.wakeword.head_file import read_head, write_head
from slipway_export.families.wakeword.network import HeadConfig, WakeWordHead
from slipway_export.families.wakeword.presets import all_flags
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Precision

RATE_HZ = 16_000
BASIC = HeadConfig(embedding_dim=TINY_CONFIG["hidden_size"], hidden_dims=(32, 16))
WORDS = {
    "jarvis": all_flags(BASIC),
    "computer": BASIC,
    "alexa": replace(BASIC, hidden_dims=(48,), use_se_block=True),
}
# Between the lowest and the highest probability that the random heads give to the recordings of the tests.
THRESHOLD = 0.5
# Of a probability: features and networks are rounded differently, batches too.
CLOSE = 1e-4


@dataclass(frozen=True)
class Exported:
    """What the tests share.

    Attributes:
        backbone: the AST checkpoint.
        words: folder of each word's head, by name.
        repository: all of them exported; the word alexa in int8, jarvis also fused.
    """

    backbone: Path
    words: dict[str, Path]
    repository: Path


def export_all(shared: Path) -> Exported:
    """Return what the tests share, exported by the first process that asks. Read only."""
    folder, kept = shared / "wakeword", shared / "wakeword.pickle"
    with FileLock(shared / "wakeword.lock"):
        if not kept.exists():
            kept.write_bytes(pickle.dumps(_export_into(folder, shared)))
    exported: Exported = pickle.loads(kept.read_bytes())
    return exported


def _export_into(folder: Path, shared: Path) -> Exported:
    """Write the words into a folder and export them, beside the backbone, into its repository."""
    backbone = checkpoint_once(shared, "wakeword")
    repository = folder / "repository"
    shutil.copytree(exported_once(shared, "wakeword", str(backbone))[0], repository)
    words = {}
    for seed, (word, config) in enumerate(WORDS.items()):
        words[word] = folder / "models" / word
        words[word].mkdir(parents=True)
        write_head(
            words[word] / "model.pt", lively_head(config, seed), wake_word=word, threshold=THRESHOLD,
            base_model=str(backbone),
        )  # fmt: skip
        options = ExportOptions(str(words[word]), repository)
        if word == "alexa":
            options = replace(options, precision=Precision.INT8)
        run_export(family_named("wakeword_head"), options)
    fused = ExportOptions(str(words["jarvis"]), repository, variant="fused")
    run_export(family_named("wakeword_head"), fused)
    return Exported(backbone, words, repository)


def lively_head(config: HeadConfig, seed: int) -> WakeWordHead:
    """Return a random head whose probability moves over nearly all of 0 to 1 from clip to clip."""
    torch.manual_seed(seed)
    head = WakeWordHead(config)
    with torch.no_grad():
        head.classifier[-1].weight.mul_(3)
    return head


class Reference:
    """transformers' networks and the head's own, fed by the loudness rule written once more."""

    def __init__(self, exported: Exported) -> None:
        self.extractor = ASTFeatureExtractor.from_pretrained(exported.backbone)
        self.model = ASTModel.from_pretrained(exported.backbone).eval()
        self.heads = {
            word: read_head(folder / "model.pt", word).network() for word, folder in exported.words.items()
        }

    def probability(self, word: str, audio: np.ndarray, rate_hz: int = RATE_HZ) -> float:
        """Return the probability of a word in one clip."""
        if np.sqrt(np.mean(audio.astype(np.float64) ** 2)) < 0.005:
            return 0.0
        audio = audio / np.abs(audio).max() * 0.9
        if rate_hz != RATE_HZ:
            audio = soxr.resample(audio, rate_hz, RATE_HZ)
        features = self.extractor(audio, sampling_rate=RATE_HZ, return_tensors="pt")["input_values"]
        with torch.no_grad():
            logits = self.heads[word](self.model(features).pooler_output)
        return float(logits.softmax(-1)[0, 1])


def sounds(seconds: float, seed: int, rate_hz: int = RATE_HZ) -> np.ndarray:
    """Return syllables: harmonics of changing pitch and colour with pauses, float32 within -1 to 1."""
    random = np.random.default_rng(seed)
    time_s = np.arange(int(seconds * rate_hz)) / rate_hz
    audio = 0.02 * random.standard_normal(time_s.size)
    start_s = 0.0
    while start_s < seconds:
        length_s = random.uniform(0.1, 0.4)
        inside = (time_s >= start_s) & (time_s < start_s + length_s)
        pitch_hz, centre_hz = random.uniform(90, 250), random.uniform(300, 3000)
        for harmonic in range(1, 20):
            level = np.exp(-(((harmonic * pitch_hz - centre_hz) / 500) ** 2))
            audio[inside] += 0.2 * level * np.sin(2 * np.pi * harmonic * pitch_hz * time_s[inside])
        start_s += length_s + random.uniform(0.0, 0.3)
    return (audio / np.abs(audio).max() * random.uniform(0.2, 1.0)).astype(np.float32)


def clips(*audio: np.ndarray, rate_hz: int = RATE_HZ, words: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the tensors of a request."""
    tensors: dict[str, Any] = {
        "audio": np.stack(audio),
        "sample_rate": np.full((len(audio), 1), rate_hz, np.int64),
    }
    if words:
        tensors["words"] = np.array([[word.encode() for word in words]] * len(audio), np.object_)
    return tensors


def pcm_of(seconds: float, seed: int) -> np.ndarray:
    return (sounds(seconds, seed) * 32767).astype(np.int16)
