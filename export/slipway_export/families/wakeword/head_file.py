"""Reader and writer of WakeBuilder's `model.pt`, which holds one wake word's head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipway_export.checkpoint.keys import shown_keys
from slipway_export.checkpoint.torch_file import checked_weights, read_torch_file
from slipway_export.families.wakeword.network import HeadConfig, WakeWordHead
from slipway_serving.protocol.errors import InvalidRequest

MODEL_VERSION = "2.0"
SAMPLE_RATE_HZ = 16_000


@dataclass(frozen=True)
class SavedHead:
    """Content of a head's `.pt` file.

    Args:
        config: Sizes and flags of the network.
        state: Weights by the keys of :class:`WakeWordHead`.
        wake_word: Word as people say it.
        threshold: Lowest probability at which the word counts as detected, 0 to 1.
        base_model: Backbone with which the head was trained: a folder, or a hub id.
        more: Other entries of the file (metrics, training_config, ...).
    """

    config: HeadConfig
    state: Mapping[str, Tensor]
    wake_word: str
    threshold: float
    base_model: str
    more: Mapping[str, Any] = field(default_factory=dict)

    def network(self) -> WakeWordHead:
        """Build the head with its weights, in eval mode."""
        head = WakeWordHead(self.config)
        head.load_state_dict(self.state)
        return head.eval().requires_grad_(False)


_FIELDS = (
    "classifier_state_dict",
    "wake_word",
    "threshold",
    "embedding_dim",
    "classifier_hidden_dims",
    "classifier_dropout",
    "use_attention",
    "use_se_block",
    "use_tcn",
    "base_model",
)
_REQUIRED = ("classifier_state_dict", "wake_word", "threshold", "embedding_dim", "base_model")


def write_head(
    path: Path, head: WakeWordHead, *, wake_word: str, threshold: float, base_model: str, **more: Any
) -> None:
    """Write a head in WakeBuilder's `.pt` layout.

    Args:
        path: Path of the file.
        head: Trained head.
        wake_word: Word as people say it.
        threshold: Lowest probability at which the word counts as detected, 0 to 1.
        base_model: Folder or hub id of the backbone with which the head was trained.
        **more: Further entries of plain numbers, texts, lists and dicts.
    """
    config = head.config
    content = {
        "classifier_state_dict": {key: value.detach().clone() for key, value in head.state_dict().items()},
        "wake_word": wake_word,
        "threshold": threshold,
        "embedding_dim": config.embedding_dim,
        "classifier_hidden_dims": list(config.hidden_dims),
        "classifier_dropout": config.dropout,
        "use_attention": config.use_attention,
        "use_se_block": config.use_se_block,
        "use_tcn": config.use_tcn,
        "sample_rate": SAMPLE_RATE_HZ,
        "model_version": MODEL_VERSION,
        "base_model": base_model,
    }
    torch.save(content | more, path)


def read_head(path: Path, where: str) -> SavedHead:
    """Read a head's `.pt` file without executing any code in it.

    Args:
        path: Path of the file.
        where: Name of the file in error messages.

    Raises:
        InvalidRequest: The file is missing, is of another kind, requires code to be run, or has invalid
            entries.
    """
    content = read_torch_file(path, where)
    if missing := [name for name in _REQUIRED if name not in content]:
        raise InvalidRequest(
            f"{where}: {', '.join(missing)} must be in a wake-word head, got"
            f" {shown_keys([*map(str, content)])}"
        )
    rate = content.get("sample_rate", SAMPLE_RATE_HZ)
    if rate != SAMPLE_RATE_HZ:
        raise InvalidRequest(f"{where}: sample_rate must be {SAMPLE_RATE_HZ}, got {rate!r}")
    sizes = content.get("classifier_hidden_dims", HeadConfig.hidden_dims)
    try:
        config = HeadConfig(
            embedding_dim=content["embedding_dim"],
            hidden_dims=tuple(sizes) if isinstance(sizes, list) else sizes,
            dropout=content.get("classifier_dropout", HeadConfig.dropout),
            **{flag: content.get(flag, False) for flag in ("use_attention", "use_se_block", "use_tcn")},
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from None
    with torch.device("meta"):
        network = WakeWordHead(config)
    state = checked_weights(network, content["classifier_state_dict"], f"{where}: classifier_state_dict")
    threshold = content["threshold"]
    if not (isinstance(threshold, int | float) and 0 <= threshold <= 1):
        raise InvalidRequest(f"{where}: threshold must be 0 to 1, got {threshold!r}")
    texts = {name: content[name] for name in ("wake_word", "base_model")}
    if wrong := [
        f"{name} must be a text, got {text!r}" for name, text in texts.items() if not _is_text(text)
    ]:
        raise InvalidRequest(f"{where}: " + " | ".join(wrong))
    more = {str(name): _plain(value) for name, value in content.items() if name not in _FIELDS}
    return SavedHead(config, state, texts["wake_word"], float(threshold), texts["base_model"], more)


def _plain(value: object) -> object:
    """Return an entry without NumPy's types, which training scripts leave in metrics."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
