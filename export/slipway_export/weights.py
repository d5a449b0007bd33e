"""Weights that stay on disk: networks without them, and a graph's tensors that are read while it is written.

Inside :func:`left_on_disk` a checkpoint's networks come with weights that were never read and take no memory:
pages of an empty file in the layout of theirs, so that the libraries' own loaders make them. They are traced
like any other; :func:`bind` then gives the graph tensors that know their place in the checkpoint's files, and
read, convert and turn themselves when they are written, one by one.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor, to_torch_dtype
from safetensors import safe_open
from torch.utils.weak import WeakTensorKeyDictionary

Array = np.ndarray[Any, Any]

# What is read at a time; a matrix that is turned around is read whole.
_CHUNK_BYTES = 64 * 2**20
# Of an empty file in place of weights.
_EMPTY_BYTES = 2**30
# Tensors that the exporter's constant folding may look into.
_SMALL = 1024
_SAFETENSORS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.int8: "I8", torch.bool: "BOOL",
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
    with tempfile.TemporaryDirectory(prefix="slipway-empty-") as name:
        empty = Path(name)
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


class Weight(ir.LazyTensor):
    """A graph's tensor that lies in a checkpoint's file: converted, and turned around, while it is read.

    Args:
        stored: where it lies.
        dtype: of the graph's tensor.
        perm: order of the stored dimensions, as of a Transpose.
        name: of the tensor.
    """

    def __init__(
        self, stored: Stored, dtype: ir.DataType, perm: tuple[int, ...] | None = None, name: str | None = None
    ) -> None:
        self.stored, self.perm = stored, perm
        shape = stored.shape if perm is None else tuple(stored.shape[i] for i in perm)
        super().__init__(lambda: TorchTensor(self.tensor()), dtype, ir.Shape(shape), name=name)

    def turned(self, perm: tuple[int, ...], name: str | None) -> Weight:
        """Return the tensor with its dimensions in another order."""
        before = self.perm or tuple(range(len(self.stored.shape)))
        return Weight(self.stored, self.dtype, tuple(before[i] for i in perm), name)

    def tensor(self) -> torch.Tensor:
        """Read the tensor."""
        tensor = self.stored.read().to(to_torch_dtype(self.dtype))
        return tensor if self.perm is None else tensor.permute(self.perm).contiguous()

    def tofile(self, file: IO[bytes]) -> None:
        """Write the tensor's bytes, a part at a time where it lies in the file's order."""
        for part in self._parts():
            file.write(part.contiguous().flatten().view(torch.uint8).numpy().data)

    def _parts(self) -> Iterator[torch.Tensor]:
        shape = self.stored.shape
        if self.perm is not None or not shape or self.stored.bytes <= _CHUNK_BYTES:
            yield self.tensor()
            return
        rows = max(1, _CHUNK_BYTES // (self.stored.bytes // shape[0]))
        for begin in range(0, shape[0], rows):
            yield self.stored.read(begin, begin + rows).to(to_torch_dtype(self.dtype))


def bind(model: ir.Model, module: torch.nn.Module) -> None:
    """Give a traced graph the tensors of its network that lie on disk.

    Args:
        model: the graph, whose initializers are named as in the network, before any of them is folded.
        module: that was traced.
    """
    stored = stored_weights(module)
    for name, value in model.graph.initializers.items():
        place, traced = stored.get(name), value.const_value
        if place is None or traced is None:
            continue
        weight = Weight(place, traced.dtype, name=name)
        small = int(np.prod(place.shape, dtype=np.int64)) <= _SMALL
        value.const_value = TorchTensor(weight.tensor(), name) if small else weight


def keeps_weights(node: ir.Node) -> bool | None:
    """Say that a node is not folded if it takes a weight that lies on disk; for constant folding."""
    weights = (value is not None and isinstance(value.const_value, Weight) for value in node.inputs)
    return False if any(weights) else None


def fold_transposes(model: ir.Model) -> None:
    """Turn weights around where a graph would do it at each load."""
    for node in list(model.graph):
        value = node.inputs[0] if node.op_type == "Transpose" and not node.domain else None
        if value is None or not isinstance(value.const_value, Weight) or len(value.uses()) != 1:
            continue
        weight, out = value.const_value, node.outputs[0]
        if out.is_graph_output() or value.is_graph_output():
            continue
        perm = node.attributes.get("perm")
        order = tuple(perm.as_ints()) if perm else tuple(reversed(range(len(weight.shape))))
        turned = ir.Value(
            name=out.name, shape=out.shape, type=out.type, const_value=weight.turned(order, out.name)
        )
        out.replace_all_uses_with(turned)
        model.graph.remove(node, safe=True)
        model.graph.initializers.pop(str(value.name))
        model.graph.register_initializer(turned)
