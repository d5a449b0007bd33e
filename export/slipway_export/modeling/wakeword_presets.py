"""Writes small random wake-word checkpoints, in the layout and with the key names of the public ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import ASTConfig, ASTFeatureExtractor, ASTForAudioClassification

from slipway_export.modeling.wakeword import HeadConfig, WakeWordHead, write_head

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
    """Write an AST with its classification of 35 labels, as the public checkpoints have it.

    Args:
        folder: an existing folder.
        config: sizes of the network.
        preprocessor: of the feature extractor.
        seed: of the weights.
        gain: on the products' random start, at which an embedding hardly depends on the audio. It amplifies
            rounding as well, far more than trained weights do: good for two layers, not for twelve.
    """
    with _seeded(seed):
        network = ASTForAudioClassification(ASTConfig(**config, num_labels=_LABELS))
        # transformers starts the class tokens and the positions at zero, where the two tokens are one.
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
        folder: an existing folder, whose name becomes the word's.
        config: sizes and flags of the head.
        seed: of the weights.
        base_model: the backbone that the file names.
    """
    with _seeded(seed):
        head = WakeWordHead(config)
    facts = {"wake_word": "hey slipway", "threshold": THRESHOLD, "base_model": base_model}
    write_head(folder / "model.pt", head, **facts)  # type: ignore[arg-type]
    sizes = {"embedding_dim": config.embedding_dim, "classifier_hidden_dims": list(config.hidden_dims)}
    text = json.dumps({"model_type": "ast", **facts, **sizes}, indent=2)
    (folder / "metadata.json").write_text(text + "\n", encoding="utf-8")


def all_flags(config: HeadConfig) -> HeadConfig:
    """Return the same head with attention, squeeze-excitation and convolutions."""
    return replace(config, use_attention=True, use_se_block=True, use_tcn=True)
