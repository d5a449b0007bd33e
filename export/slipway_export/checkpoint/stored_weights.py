"""Weights that stay on disk: networks whose tensors know their location in a checkpoint's files.

A network that is loaded with `Loading.ON_DISK` has weights that were never read and take no memory. These are
pages of an empty file with the layout of the weight files, so that the libraries' own loaders create them.
The networks are traced like any other; `graph/external_weights.py` then gives the graph the tensors of those
locations.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch.utils.weak import WeakTensorKeyDictionary

from slipway_serving.system.temporary_folders import TemporaryFolder

# Largest size of an empty file in place of weights, in bytes.
_EMPTY_BYTES = 2**30
_SAFETENSORS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.int8: "I8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
INDEX_END = ".index.json"
"""Suffix of the name of an index of shards, after the name of the file that the shards replace."""
DTYPES = {name: dtype for dtype, name in _SAFETENSORS.items()}
"""Types of torch by their names in safetensors files."""

_locations: MutableMapping[torch.Tensor, StoredTensor] = WeakTensorKeyDictionary()


@dataclass(frozen=True)
class StoredTensor:
    """Tensor in a safetensors file; subclasses compute theirs from other files (`layouts/computed.py`).

    Args:
        file: File that contains the tensor.
        key: Key of the tensor in the file.
        shape: Shape of the tensor.
        dtype: Type of the tensor when it is read.
    """

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Size in memory when it is read, in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def disk_bytes(self) -> int:
        """Size on disk, in bytes."""
        return self.bytes

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Read single rows, given by an integer tensor of any shape."""
        return self.read()[indices]

    def read(self, begin: int | None = None, end: int | None = None) -> torch.Tensor:
        """Read the tensor, or rows of it; its memory is the mapped file until it is written to."""
        with safe_open(self.file, framework="pt") as tensors:
            if begin is None or not self.shape:
                whole: torch.Tensor = tensors.get_tensor(self.key)
                return whole
            rows: torch.Tensor = tensors.get_slice(self.key)[begin:end]
            return rows


def tensors_without_files(network: torch.nn.Module) -> dict[str, StoredTensor]:
    """Return the tensors of a network without weights, by key, as stored in files that do not exist."""
    return {
        key: StoredTensor(Path(), key, tuple(each.shape), each.dtype)
        for key, each in network.state_dict().items()
    }


@contextlib.contextmanager
def placeholder_folder(
    folder: Path,
    files: Sequence[str],
    stored: Mapping[str, StoredTensor],
    dtype_of: Callable[[str], torch.dtype],
) -> Iterator[Path]:
    """Open a copy of a part's folder with weight files that have its keys and no content.

    Args:
        folder: Folder of the part; its other files are linked.
        files: Name of the weight file, and other names that a loader may look for.
        stored: Tensors of the part by key.
        dtype_of: Function that returns the type for a floating-point tensor, given its key.
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
    """Distribute keys over files that any machine can map, since a mapping larger than memory is refused."""
    keys: list[str] = []
    shard_bytes = 0
    for key, (dtype, shape) in tensors.items():
        size = math.prod(shape) * dtype.itemsize
        if keys and shard_bytes + size > _EMPTY_BYTES:
            yield keys
            keys, shard_bytes = [], 0
        keys.append(key)
        shard_bytes += size
    yield keys


def write_empty(
    path: Path,
    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file whose tensors are a hole, which takes no disk space or memory.

    Args:
        path: Path of the file.
        tensors: Type and shape by key.
        metadata: Texts in the file's header, besides the format.
    """
    header, size = safetensors_header(tensors, metadata)
    with path.open("wb") as out:
        out.write(header)
        out.truncate(len(header) + size)


def safetensors_header(
    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, int]:
    """Return the header of a safetensors file, and the number of bytes of all tensors after it.

    Args:
        tensors: Type and shape by key, in the order of the file.
        metadata: Texts besides the format.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for key, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[key] = {"dtype": _SAFETENSORS[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, end


def record_locations(network: torch.nn.Module, stored: Mapping[str, StoredTensor]) -> None:
    """Record the locations of a loaded network's weights, also for networks that later contain it.

    Args:
        network: Network as loaded.
        stored: Tensors of the network by key; a tied weight may be there under any of its names.
    """
    locations = {id(tensor): stored[name] for name, tensor in _named_tensors(network) if name in stored}
    for _, tensor in _named_tensors(network):
        if id(tensor) in locations:
            _locations[tensor] = locations[id(tensor)]


def fill(network: torch.nn.Module, stored: Mapping[str, StoredTensor]) -> None:
    """Read the weights of a network whose tensors have no content, one after another.

    Args:
        network: Network as loaded from a :func:`placeholder_folder`; its tensors keep their types.
        stored: Tensors of the network by key.
    """
    filled: set[int] = set()
    for name, tensor in _named_tensors(network):
        if name in stored and id(tensor) not in filled:
            # A copy, so that no weight keeps a file of the checkpoint mapped.
            tensor.data = stored[name].read().to(tensor.dtype, copy=True)
            filled.add(id(tensor))


def stored_weights(module: torch.nn.Module) -> dict[str, StoredTensor]:
    """Return the stored tensors of a network's weights, by name; weights without a location are left out."""
    return {name: _locations[tensor] for name, tensor in _named_tensors(module) if tensor in _locations}


def _named_tensors(network: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers(remove_duplicate=False)
