"""Strict loader of the network from upstream's safetensors files, whose keys begin with ``model.``."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.keys import check_keys, torch_dtype
from slipway_export.checkpoint.stored_weights import (
    StoredTensor,
    record_locations,
    tensors_without_files,
)
from slipway_export.families.matrix_game.causal_wan.config import CLIP_DIM, read_config
from slipway_export.families.matrix_game.causal_wan.network import CausalWan
from slipway_export.spec import Loading, Precision

PREFIX = "model."
_VISUAL = "img_emb.proj.0.weight"


def load_network(
    checkpoint: Checkpoint, config: str, weights: str, precision: Precision, loading: Loading
) -> CausalWan:
    """Load a network, in eval mode and without gradients.

    Args:
        checkpoint: Checkpoint that contains the files.
        config: Path of the `config.json` in the checkpoint.
        weights: Path of the safetensors file in the checkpoint. Its keys may all lack the prefix.
        precision: Precision of the weights.
        loading: Extent to which weights are read. None is ever read where configurations suffice.

    Raises:
        InvalidRequest: A file is missing or invalid, or a key is missing, unknown or of another shape; the
            message names the file, and the keys as they are in the file.
    """
    read = read_config(checkpoint.config(config), f"{checkpoint.where(config)}: {config}")
    stored = _stored(checkpoint, weights)
    prefix = _prefix(stored)
    with torch.device("meta"):
        network = CausalWan(read, _visual_dim(stored))
    if stored is None:
        stored = {prefix + key: place for key, place in tensors_without_files(network).items()}
    shapes = {key: place.shape for key, place in stored.items()}
    check_keys(f"{checkpoint.where(weights)}: {weights}", shapes, network, prefix)
    dtype = torch_dtype(precision)
    locations = {key.removeprefix(prefix): place for key, place in stored.items()}
    if loading is Loading.META:
        network.to(dtype)
    else:
        unread = loading is Loading.ON_DISK or checkpoint.configurations_only
        # An unread weight takes only address space: nothing reads the tensor until it is bound to its file.
        tensors = {
            key: torch.empty(place.shape, dtype=dtype) if unread else place.read().to(dtype)
            for key, place in locations.items()
        }
        network.load_state_dict(tensors, assign=True)
    record_locations(network, locations)
    return network.eval().requires_grad_(False)


def visual_dim(checkpoint: Checkpoint, weights: str) -> int:
    """Return the width of the image features that a network takes, which no configuration contains.

    Args:
        checkpoint: Checkpoint that contains the file.
        weights: Path of the safetensors file; only its header is read. If the file is missing and
            configurations suffice, the public width is returned.

    Raises:
        InvalidRequest: The file is missing or invalid.
    """
    return _visual_dim(_stored(checkpoint, weights))


def _stored(checkpoint: Checkpoint, weights: str) -> dict[str, StoredTensor] | None:
    """Return the locations of the weights; None if configurations replace them."""
    if checkpoint.configurations_only and not checkpoint.has(weights):
        return None
    return checkpoint.stored_in(weights)


def _prefix(stored: Mapping[str, StoredTensor] | None) -> str:
    return PREFIX if stored is None or any(key.startswith(PREFIX) for key in stored) else ""


def _visual_dim(stored: Mapping[str, StoredTensor] | None) -> int:
    visual = None if stored is None else stored.get(_prefix(stored) + _VISUAL)
    return visual.shape[0] if visual is not None and visual.shape else CLIP_DIM
