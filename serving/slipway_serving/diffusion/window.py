"""Rolling key/value window that the blocks of an endless stream attend to.

A block is denoised in several steps. Each step writes the block's keys and values again, and only those of
the last step, of clean latents, may stay. :meth:`Window.begin` drops the oldest positions to make room for a
block, :meth:`Window.write` replaces the block's earlier keys and values, and :meth:`Window.commit` keeps
them. Arrays stay arrays, and OrtValues stay on the device of the graph, which torch must support since it
joins and cuts them. Each position (frame or token) also has an absolute place in the stream, for rotary
embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.runtime.dlpack import tensor_of, value_of

T = TypeVar("T", NDArray[Any], ort.OrtValue)


class Window(Generic[T]):
    """Keys and values of the last positions of a network, by tensor name.

    Args:
        where: Name of the model, for messages.
        size: Largest number of positions that a block attends to, its own included.
        axis: Axis of the positions in every tensor.
        stride: Number of entries of that axis for each position, e.g. 880 tokens for a latent frame.

    Attributes:
        start: Place of the current block in the stream, i.e. the number of positions committed before it.
    """

    def __init__(self, where: str, size: int, axis: int, stride: int = 1) -> None:
        self._where, self._size, self._axis, self._stride = where, size, axis, stride
        self._held: dict[str, T] = {}
        self._block: dict[str, T] = {}
        self._length = self._kept = 0
        self.start = 0

    @property
    def held(self) -> Mapping[str, T]:
        """Keys and values that the current block attends to besides its own; empty until the first commit."""
        return self._held

    @property
    def valid(self) -> int:
        """Number of positions in the window, without the current block."""
        return self._kept

    @property
    def positions(self) -> range:
        """Places in the stream of all positions that the current block attends to, its own included."""
        return range(self.start - self._kept, self.start + self._length)

    @property
    def whole(self) -> Mapping[str, T]:
        """Keys and values of the window and the current block, joined."""
        return self._joined()

    def begin(self, length: int) -> Mapping[str, T]:
        """Begin a block: drop the oldest positions until it fits, and all that is not committed.

        Args:
            length: Number of positions of the block.

        Returns:
            Keys and values of the window, see :attr:`held`.

        Raises:
            Unrecoverable: The block is empty or larger than the window.
        """
        if not 1 <= length <= self._size:
            raise Unrecoverable(f"{self._where}: a block must be 1 to {self._size} long, got {length}")
        self._block, self._length = {}, length
        self._keep(self._size - length)
        return self._held

    def write(self, tensors: Mapping[str, T]) -> None:
        """Store the keys and values of the block, in place of those of an earlier step of the same block.

        Raises:
            Unrecoverable: No block was begun, or the tensors have another length or other names.
        """
        if not self._length:
            raise Unrecoverable(f"{self._where}: a block must be begun before it is written, got none")
        wanted = set(self._held or tensors)
        entries = {name: _shape(tensor)[self._axis] for name, tensor in tensors.items()}
        if set(entries) != wanted or set(entries.values()) != {self._length * self._stride}:
            raise Unrecoverable(
                f"{self._where}: a block must be written as {', '.join(sorted(wanted))} with"
                f" {self._length * self._stride} entries on axis {self._axis}, got {entries}"
            )
        self._block = dict(tensors)

    def commit(self) -> None:
        """Keep the keys and values that were written last, and end the block.

        Raises:
            Unrecoverable: Nothing was written since the block began.
        """
        if not self._block:
            raise Unrecoverable(f"{self._where}: a block must be written before it is committed, got none")
        self._held = self._joined()
        self._kept += self._length
        self.start += self._length
        self._block, self._length = {}, 0

    def _joined(self) -> dict[str, T]:
        if not self._held or not self._block:
            return dict(self._block or self._held)
        return {name: _join([self._held[name], self._block[name]], self._axis) for name in self._held}

    def _keep(self, positions: int) -> None:
        if self._kept <= positions:
            return
        first = (self._kept - positions) * self._stride
        # A window with room for one block only drops its tensors, since a graph takes no empty tensor.
        self._held = {name: _after(held, first, self._axis) for name, held in self._held.items() if positions}
        self._kept = positions


def _shape(tensor: Any) -> Sequence[int]:
    shape: Sequence[int] = tensor.shape() if isinstance(tensor, ort.OrtValue) else tensor.shape
    return shape


def _join(parts: Sequence[Any], axis: int) -> Any:
    if isinstance(parts[0], ort.OrtValue):
        return value_of(torch.cat([tensor_of(part) for part in parts], dim=axis))
    return np.concatenate(parts, axis=axis)


def _after(tensor: Any, first: int, axis: int) -> Any:
    """Return a copy of a tensor without its first entries on an axis; a view would keep the whole alive."""
    if isinstance(tensor, ort.OrtValue):
        view = tensor_of(tensor)
        rest = view.narrow(axis, first, view.shape[axis] - first)
        return value_of(rest.clone(memory_format=torch.contiguous_format))
    return np.split(tensor, [first], axis=axis)[1].copy()
