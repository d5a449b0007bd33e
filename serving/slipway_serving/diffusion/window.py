"""A rolling key/value window: what each block of an endless stream attends to, kept between its steps.

A block is denoised in several steps, each of which writes its keys and values anew; only the last of them, of
clean latents, may stay. So: :meth:`Window.begin` makes room for a block by dropping the oldest positions,
:meth:`Window.write` replaces what the block wrote before, :meth:`Window.commit` keeps it. Arrays stay arrays,
and OrtValues stay on the device where a graph left them, which torch must know too: it joins and cuts them.
Each position, frame or token, also has its absolute place in the stream, which rotary embeddings go by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from slipway_serving.dlpack import tensor_of, value_of
from slipway_serving.errors import Unrecoverable

T = TypeVar("T", NDArray[Any], ort.OrtValue)


class Window(Generic[T]):
    """The last positions' keys and values of a network, by tensor name.

    Args:
        where: the model, for messages.
        size: positions that a block attends to at most, its own included.
        axis: of the positions in every tensor.
        stride: entries of that axis for each position, e.g. 880 tokens for a latent frame.

    Attributes:
        start: place of the block under way in the stream: positions that were committed before it.
    """

    def __init__(self, where: str, size: int, axis: int, stride: int = 1) -> None:
        self._where, self._size, self._axis, self._stride = where, size, axis, stride
        self._held: dict[str, T] = {}
        self._block: dict[str, T] = {}
        self._length = self._kept = 0
        self.start = 0

    @property
    def held(self) -> Mapping[str, T]:
        """What the block under way attends to beside itself; nothing before the first commit."""
        return self._held

    @property
    def valid(self) -> int:
        """Number of positions that are held, without the block under way."""
        return self._kept

    @property
    def positions(self) -> range:
        """Places in the stream of all that the block under way attends to, itself included."""
        return range(self.start - self._kept, self.start + self._length)

    @property
    def whole(self) -> Mapping[str, T]:
        """What is held and what the block under way wrote, joined."""
        return self._joined()

    def begin(self, length: int) -> Mapping[str, T]:
        """Begin a block: drop the oldest positions until it fits, and what was written but not committed.

        Args:
            length: positions of the block.

        Returns:
            What is held.

        Raises:
            Unrecoverable: the block is empty or larger than the window.
        """
        if not 1 <= length <= self._size:
            raise Unrecoverable(f"{self._where}: a block must be 1 to {self._size} long, got {length}")
        self._block, self._length = {}, length
        self._keep(self._size - length)
        return self._held

    def write(self, tensors: Mapping[str, T]) -> None:
        """Take the block's keys and values; what an earlier step of the same block wrote is replaced.

        Raises:
            Unrecoverable: no block was begun, or the tensors are not of its length or are other ones.
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
        """Keep the block as it was written last, and end it.

        Raises:
            Unrecoverable: nothing was written since it began.
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
        # A window of one block only keeps nothing: an empty tensor is no input of a graph.
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
    """Return a copy of what lies behind so many entries of an axis: a view would hold the whole."""
    if isinstance(tensor, ort.OrtValue):
        view = tensor_of(tensor)
        rest = view.narrow(axis, first, view.shape[axis] - first)
        return value_of(rest.clone(memory_format=torch.contiguous_format))
    return np.split(tensor, [first], axis=axis)[1].copy()
