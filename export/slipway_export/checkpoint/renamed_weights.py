"""Conversion of weights between a library's network and a file that names them differently.

A function gives, for every key of the network, the place of its tensor in the file (:class:`Source`). So all
keys of the file are known: a key that is missing, unknown or of another shape is refused by the name that the
file uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slipway_export.checkpoint.torch_file import checked_tensors
from slipway_serving.protocol.errors import InvalidRequest


@dataclass(frozen=True)
class Source:
    """Place of a network's tensor in a file.

    Args:
        key: Key in the file.
        piece: Index of the piece of the file's tensor, from 0.
        pieces: Number of the network's tensors that the file's tensor joins, along its first dimension.
        ones: Number of leading dimensions of size 1 that the file's tensor has and the network's has not.
    """

    key: str
    piece: int = 0
    pieces: int = 1
    ones: int = 0

    def shape(self, own: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the file's tensor if the network's shape is `own`."""
        return (*(1,) * self.ones, own[0] * self.pieces, *own[1:])

    def cut(self, whole: Tensor) -> Tensor:
        """Return the network's tensor as a view of the file's."""
        return whole.reshape(whole.shape[self.ones :]).chunk(self.pieces)[self.piece]


SourceOf = Callable[[str], Source]
"""Function that returns the place in a file of the tensor with the given key of the network."""


def load_renamed(
    network: nn.Module, state: object, source_of: SourceOf, where: str, left_out: Sequence[str] = ()
) -> None:
    """Load the weights of a file into a network, in place and without a copy if the types agree.

    Args:
        network: Network to load into; it may be on the meta device.
        state: Content of the file.
        source_of: Function that returns the source of each of the network's keys.
        where: Name of the file in messages.
        left_out: Prefixes of the file's keys that the network does not use.

    Raises:
        InvalidRequest: Keys of the file are missing, unknown, of another shape or not finite. The message
            names the first of them.
    """
    own = network.state_dict()
    sources = {key: source_of(key) for key in own}
    expected = {source.key: source.shape(own[key].shape) for key, source in sources.items()}
    if not isinstance(state, Mapping):
        raise InvalidRequest(f"{where} must hold tensors by name, got another content")
    remaining = {key: value for key, value in state.items() if not str(key).startswith(tuple(left_out))}
    checked = checked_tensors(expected, remaining, where, type(network).__name__)
    cut = {key: source.cut(checked[source.key]).to(own[key].dtype) for key, source in sources.items()}
    network.load_state_dict(cut, assign=True)


def shape_of(state: Mapping[str, object], key: str, dimensions: int, where: str) -> tuple[int, ...]:
    """Return the shape of a file's tensor, from which a network's configuration is inferred.

    Args:
        state: Content of the file.
        key: Key of the tensor.
        dimensions: Number of dimensions that it must have.
        where: Name of the file in messages.

    Raises:
        InvalidRequest: The tensor is missing, no tensor, empty, or has another number of dimensions.
    """
    tensor = state.get(key)
    if not isinstance(tensor, Tensor) or tensor.ndim != dimensions or 0 in tensor.shape:
        got = list(tensor.shape) if isinstance(tensor, Tensor) else "none"
        raise InvalidRequest(f"{where}: {key} must be a tensor of {dimensions} dimensions, got {got}")
    return tuple(tensor.shape)


def renamed_weights(network: nn.Module, source_of: SourceOf) -> dict[str, Tensor]:
    """Return the weights of a network in the form that :func:`load_renamed` takes.

    Args:
        network: Network with weights.
        source_of: Function that returns the source of each of its keys.
    """
    pieces: dict[str, dict[int, Tensor]] = {}
    sources: dict[str, Source] = {}
    for key, tensor in network.state_dict().items():
        source = sources[source_of(key).key] = source_of(key)
        pieces.setdefault(source.key, {})[source.piece] = tensor
    joined = {key: torch.cat([found[i] for i in range(sources[key].pieces)]) for key, found in pieces.items()}
    return {key: tensor[(None,) * sources[key].ones].clone() for key, tensor in joined.items()}
