"""Weights that stay on disk: networks without them, whose tensors know their place in a checkpoint's files.

Inside :func:`left_on_disk` a checkpoint's networks come with weights that were never read and take no memory:
pages of an empty file in the layout of theirs, so that the libraries' own loaders make them. They are traced
like any other; `graph_weights.py` then gives the graph the tensors of those places.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch.utils.weak import WeakTensorKeyDictionary

from slipway_serving.temporary_folders import TemporaryFolder

# Of an empty file in place of weights.
_EMPTY_BYTES = 2**30
_SAFETENSORS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.int8: "I8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
INDEX_END = ".index.json"
"""What the name of an index of shards ends with, after that of the file that they stand for."""
DTYPES = {name: dtype for dtype, name in _SAFETENSORS.items()}
"""torch's types by the names that safetensors files give them."""

_on_disk: ContextVar[bool] = ContextVar("weights left on disk", default=False)
_described: ContextVar[bool] = ContextVar("weights as configurations describe them", default=False)
_left_out: ContextVar[bool] = ContextVar("weights left out", default=False)
_places: MutableMapping[torch.Tensor, Stored] = WeakTensorKeyDictionary()


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies.

    Args:
        file: a safetensors file.
        key: of the tensor in it.
        shape: of the tensor.
        dtype: its type there.
    """

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def read(self, begin: int | None = None, end: int | None = None) -> torch.Tensor:
        """Read the tensor, or rows of it; the memory is the file's until it is written to."""
        with safe_open(self.file, framework="pt") as tensors:
            if begin is None or not self.shape:
                whole: torch.Tensor = tensors.get_tensor(self.key)
                return whole
            rows: torch.Tensor = tensors.get_slice(self.key)[begin:end]
            return rows


@contextlib.contextmanager
def left_on_disk() -> Iterator[None]:
    """Have `Checkpoint.load` give networks without reading their weights, for tracing."""
    token = _on_disk.set(True)
    try:
        yield
    finally:
        _on_disk.reset(token)


def are_left_on_disk() -> bool:
    """Whether this is inside :func:`left_on_disk`."""
    return _on_disk.get()


@contextlib.contextmanager
def from_configurations() -> Iterator[None]:
    """Have `Checkpoint.load` give networks as their configurations describe them, weight files or none."""
    token = _described.set(True)
    try:
        with left_on_disk():
            yield
    finally:
        _described.reset(token)


def are_from_configurations() -> bool:
    """Whether this is inside :func:`from_configurations`."""
    return _described.get()


def described(network: torch.nn.Module) -> dict[str, Stored]:
    """Return the tensors of a network without weights, by key, as those of files that are not there."""
    return {
        key: Stored(Path(), key, tuple(each.shape), each.dtype) for key, each in network.state_dict().items()
    }


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Have `Checkpoint.load` check a part and give its network on the meta device, to be weighed."""
    token = _left_out.set(True)
    try:
        yield
    finally:
        _left_out.reset(token)


def are_left_out() -> bool:
    """Whether this is inside :func:`left_out`."""
    return _left_out.get()


@contextlib.contextmanager
def stand_in(
    folder: Path,
    files: Sequence[str],
    stored: Mapping[str, Stored],
    dtype_of: Callable[[str], torch.dtype],
) -> Iterator[Path]:
    """Open a folder like a part's, with weight files that have its keys and no content.

    Args:
        folder: of the part; its other files are linked.
        files: the weight file's name, and others that it may be looked for under.
        stored: the part's tensors by key.
        dtype_of: the type to give a tensor of floats, by its key.
    """
    tensors = {
        key: (dtype_of(key) if tensor.dtype.is_floating_point else tensor.dtype, tensor.shape)
        for key, tensor in stored.items()
    }
    shards = list(_shards(tensors))
    weights = {tensor.file.name for tensor in stored.values()}
    with TemporaryFolder("slipway-empty-weights-") as empty:
        for path in folder.iterdir():
            if path.name not in weights and not path.name.endswith(INDEX_END):
                (empty / path.name).symlink_to(path.resolve())
        names = [files[0]] if len(shards) == 1 else [f"{i}-{files[0]}" for i in range(len(shards))]
        for shard, keys in zip(names, shards, strict=True):
            write_empty(empty / shard, {key: tensors[key] for key in keys})
        entry = files[0]
        if len(shards) > 1:
            entry += INDEX_END
            index = {key: shard for shard, keys in zip(names, shards, strict=True) for key in keys}
            text = json.dumps({"metadata": {}, "weight_map": index})
            (empty / entry).write_text(text, encoding="utf-8")
        for other in files[1:]:
            (empty / (other + entry.removeprefix(files[0]))).symlink_to(empty / entry)
        yield empty


def _shards(tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> Iterator[list[str]]:
    """Share keys out among files that any machine can map: a mapping larger than memory is refused."""
    keys: list[str] = []
    held = 0
    for key, (dtype, shape) in tensors.items():
        size = math.prod(shape) * dtype.itemsize
        if keys and held + size > _EMPTY_BYTES:
            yield keys
            keys, held = [], 0
        keys.append(key)
        held += size
    yield keys


def write_empty(path: Path, tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
    """Write a safetensors file whose tensors are a hole, which takes no space and no memory until it is read.

    Args:
        path: of the file.
        tensors: type and shape by key.
    """
    header, size = safetensors_header(tensors)
    with path.open("wb") as out:
        out.write(header)
        out.truncate(len(header) + size)


def safetensors_header(tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> tuple[bytes, int]:
    """Return what a safetensors file has before its tensors, and the bytes of all tensors after it.

    Args:
        tensors: type and shape by key, in the order in which they lie in the file.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[key] = {"dtype": _SAFETENSORS[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, end


def remember(network: torch.nn.Module, stored: Mapping[str, Stored]) -> None:
    """Note where the weights of a loaded network lie, whatever networks they become parts of.

    Args:
        network: as loaded.
        stored: its tensors by key; a tied weight may be there under any of its names.
    """
    places = {id(tensor): stored[name] for name, tensor in _named_tensors(network) if name in stored}
    for _, tensor in _named_tensors(network):
        if id(tensor) in places:
            _places[tensor] = places[id(tensor)]


def stored_weights(module: torch.nn.Module) -> dict[str, Stored]:
    """Return where the weights of a network lie, by their names in it; none for what was made elsewhere."""
    return {name: _places[tensor] for name, tensor in _named_tensors(module) if tensor in _places}


def _named_tensors(network: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers(remove_duplicate=False)
