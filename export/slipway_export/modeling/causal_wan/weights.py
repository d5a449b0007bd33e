"""Loads the network from upstream's safetensors files, whose keys begin with ``model.``, strictly."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from slipway_export.checkpoint import Checkpoint, check_keys, torch_dtype
from slipway_export.modeling.causal_wan.config import CLIP_DIM, read_config
from slipway_export.modeling.causal_wan.network import CausalWan
from slipway_export.spec import Precision
from slipway_export.weights import (
    Stored,
    are_from_configurations,
    are_left_on_disk,
    are_left_out,
    described,
    remember,
)

PREFIX = "model."
_VISUAL = "img_emb.proj.0.weight"


def load_network(
    checkpoint: Checkpoint, config: str, weights: str, precision: Precision = Precision.FP32
) -> CausalWan:
    """Load a network, in eval mode and without gradients.

    Where `slipway_export.weights` leaves weights out or on disk, they are not read.

    Args:
        checkpoint: that has the files.
        config: path of the `config.json` within it.
        weights: path of the safetensors file. Its keys may all lack the prefix.
        precision: of the weights.

    Raises:
        InvalidRequest: a file is missing or not what it must be, or a key is missing, unknown or of another
            shape; names the file, and the keys as the file has them.
    """
    read = read_config(checkpoint.config(config), f"{checkpoint.where(config)}: {config}")
    stored = _stored(checkpoint, weights)
    prefix = _prefix(stored)
    with torch.device("meta"):
        network = CausalWan(read, _visual_dim(stored))
    if stored is None:
        stored = {prefix + key: place for key, place in described(network).items()}
    shapes = {key: place.shape for key, place in stored.items()}
    check_keys(f"{checkpoint.where(weights)}: {weights}", shapes, network, prefix)
    dtype = torch_dtype(precision)
    places = {key.removeprefix(prefix): place for key, place in stored.items()}
    if are_left_out():
        network.to(dtype)
    else:
        network.load_state_dict({key: _tensor(place, dtype) for key, place in places.items()}, assign=True)
    remember(network, places)
    return network.eval().requires_grad_(False)


def visual_dim(checkpoint: Checkpoint, weights: str) -> int:
    """Return the width of the image encoder's features that a network takes; no configuration has it.

    Args:
        checkpoint: that has the file.
        weights: path of the safetensors file; only its header is read. Where configurations are enough and
            it is missing, the public width is returned.

    Raises:
        InvalidRequest: the file is missing or not what it must be.
    """
    return _visual_dim(_stored(checkpoint, weights))


def _stored(checkpoint: Checkpoint, weights: str) -> dict[str, Stored] | None:
    """Return where the weights lie; None where configurations stand for them."""
    if are_from_configurations() and not checkpoint.has(weights):
        return None
    return checkpoint.stored_in(weights)


def _prefix(stored: Mapping[str, Stored] | None) -> str:
    return PREFIX if stored is None or any(key.startswith(PREFIX) for key in stored) else ""


def _visual_dim(stored: Mapping[str, Stored] | None) -> int:
    visual = None if stored is None else stored.get(_prefix(stored) + _VISUAL)
    return visual.shape[0] if visual is not None and visual.shape else CLIP_DIM


def _tensor(place: Stored, dtype: torch.dtype) -> torch.Tensor:
    # What is left on disk takes address space and no memory: nothing reads it before it is bound to its file.
    if are_left_on_disk():
        return torch.empty(place.shape, dtype=dtype)
    return place.read().to(dtype)
