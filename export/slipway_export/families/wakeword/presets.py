"""Writer of small random wake-word checkpoints, with the layout and key names of the public ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import ASTConfig, ASTFeatureExtractor, ASTForAudioClassification

from slipway_export.families.wakeword.head_file import write_head
from slipway_export.families.wakeword.network import HeadConfig, WakeWordHead

THRESHOLD = 0.65
_LABELS = 35


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.random.set_rng_state(state)


def write_backbone(
    folder: Path, config: Mapping[str, Any], preprocessor: Mapping[str, Any], seed: int, *, gain: float = 5.0
) -> None:
    """Write an AST with a classifier of 35 labels, as in the public checkpoints.

    Args:
        folder: Folder of the checkpoint; it must exist.
        config: Sizes of the network.
        preprocessor: Settings of the feature extractor.
        seed: Seed of the weights.
        gain: Factor on the random weights of linear layers, with which the embedding depends on the audio; it
            hardly does without. The factor amplifies rounding far more than trained weights do, so it suits
            two layers but not twelve.
    """
    with _seeded(seed):
        network = ASTForAudioClassification(ASTConfig(**config, num_labels=_LABELS))
        # transformers initializes the class tokens and positions with zeros, which makes both tokens equal.
        embeddings = network.audio_spectrogram_transformer.embeddings
        with torch.no_grad():
            for parameter in (
                embeddings.cls_token,
                embeddings.distillation_token,
                embeddings.position_embeddings,
            ):
                parameter.normal_(std=0.1)
            for module in network.audio_spectrogram_transformer.layers.modules():
                if isinstance(module, torch.nn.Linear):
                    module.weight.mul_(gain)
    network.save_pretrained(folder)
    ASTFeatureExtractor(**preprocessor).save_pretrained(folder)


def write_word(folder: Path, config: HeadConfig, seed: int, *, base_model: str = "backbone") -> None:
    """Write a random head's `model.pt` and `metadata.json`.

    Args:
        folder: Folder of the word, which is named as the folder; it must exist.
        config: Sizes and flags of the head.
        seed: Seed of the weights.
        base_model: Backbone that the file names.
    """
    with _seeded(seed):
        head = WakeWordHead(config)
    facts = {"wake_word": "hey slipway", "threshold": THRESHOLD, "base_model": base_model}
    write_head(folder / "model.pt", head, **facts)  # type: ignore[arg-type]
    sizes = {"embedding_dim": config.embedding_dim, "classifier_hidden_dims": list(config.hidden_dims)}
    text = json.dumps({"model_type": "ast", **facts, **sizes}, indent=2)
    (folder / "metadata.json").write_text(text + "\n", encoding="utf-8")


def all_flags(config: HeadConfig) -> HeadConfig:
    """Return the configuration with attention, squeeze-excitation and convolutions enabled."""
    return replace(config, use_attention=True, use_se_block=True, use_tcn=True)
