"""Gives a library's network the weights of a file that names them otherwise, and back.

A function says of every key of the network where the file has it (:class:`Source`). So all keys of the file
are known: one that is missing or unknown, or of another shape, is refused by the name that the file has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slipway_export.torch_file import checked_tensors
from slipway_serving.errors import InvalidRequest


@dataclass(frozen=True)
class Source:
    """Where a file has a tensor of a network.

    Args:
        key: in the file.
        piece: which of the pieces of the file's tensor it is, from 0.
        pieces: how many tensors of the network lie in the file's one, along its first dimension.
        ones: how many dimensions of 1 the file's tensor has before those of the network's.
    """

    key: str
    piece: int = 0
    pieces: int = 1
    ones: int = 0

    def shape(self, own: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the file's tensor where the network's is `own`."""
        return (*(1,) * self.ones, own[0] * self.pieces, *own[1:])

    def cut(self, whole: Tensor) -> Tensor:
        """Return the network's tensor, a view of the file's."""
        return whole.reshape(whole.shape[self.ones :]).chunk(self.pieces)[self.piece]


SourceOf = Callable[[str], Source]
"""Says where a file has the tensor of a network's key."""


def load_renamed(
    network: nn.Module, state: object, source_of: SourceOf, where: str, left_out: Sequence[str] = ()
) -> None:
    """Give a network the weights of a file, in place and without a copy where the types agree.

    Args:
        network: may be on the meta device.
        state: what the file holds.
        source_of: of the network's keys.
        where: how messages name the file.
        left_out: what keys of the file begin with that are of no use to the network.

    Raises:
        InvalidRequest: names the first keys of the file that are missing, unknown, of another shape or not
            finite.
    """
    own = network.state_dict()
    sources = {key: source_of(key) for key in own}
    wanted = {source.key: source.shape(own[key].shape) for key, source in sources.items()}
    if not isinstance(state, Mapping):
        raise InvalidRequest(f"{where} must hold tensors by name, got another content")
    kept = {key: value for key, value in state.items() if not str(key).startswith(tuple(left_out))}
    checked = checked_tensors(wanted, kept, where, type(network).__name__)
    cut = {key: source.cut(checked[source.key]).to(own[key].dtype) for key, source in sources.items()}
    network.load_state_dict(cut, assign=True)


def shape_of(state: Mapping[str, object], key: str, dimensions: int, where: str) -> tuple[int, ...]:
    """Return the shape of a file's tensor that tells the network's configuration.

    Args:
        state: what the file holds.
        key: of the tensor.
        dimensions: how many it must have.
        where: how messages name the file.

    Raises:
        InvalidRequest: it is missing, no tensor, empty, or has other dimensions.
    """
    tensor = state.get(key)
    if not isinstance(tensor, Tensor) or tensor.ndim != dimensions or 0 in tensor.shape:
        got = list(tensor.shape) if isinstance(tensor, Tensor) else "none"
        raise InvalidRequest(f"{where}: {key} must be a tensor of {dimensions} dimensions, got {got}")
    return tuple(tensor.shape)


def renamed_weights(network: nn.Module, source_of: SourceOf) -> dict[str, Tensor]:
    """Return the weights of a network as :func:`load_renamed` takes them.

    Args:
        network: with weights.
        source_of: of its keys.
    """
    pieces: dict[str, dict[int, Tensor]] = {}
    sources: dict[str, Source] = {}
    for key, tensor in network.state_dict().items():
        source = sources[source_of(key).key] = source_of(key)
        pieces.setdefault(source.key, {})[source.piece] = tensor
    joined = {key: torch.cat([found[i] for i in range(sources[key].pieces)]) for key, found in pieces.items()}
    return {key: tensor[(None,) * sources[key].ones].clone() for key, tensor in joined.items()}
