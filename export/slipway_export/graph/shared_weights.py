"""Sharing of weights on disk between the graphs of a component.

A graph refers to its weights by file, offset and length. If a graph beside it already has a weight with the
same bytes, the new graph refers to those. All other weights go to a file of the graph's own, which does not
change afterwards. ONNX Runtime maps these files, so that the graphs of one process share such weights in
memory too, unless its kernels store them in another layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import onnx
import onnx_ir as ir

# Smaller weights are stored in the graph itself.
_FROM_BYTES = 4096
# No kernel that reads weights directly from the file requires a larger alignment.
_ALIGNMENT = 64
_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class _Place:
    """Place of a weight: a file in the graph's folder, and a range of its bytes."""

    file: Path
    offset: int
    length: int

    def digest(self) -> str:
        hashed, left = hashlib.sha256(), self.length
        with self.file.open("rb") as file:
            file.seek(self.offset)
            while left and (part := file.read(min(left, _CHUNK_BYTES))):
                hashed.update(part)
                left -= len(part)
        return hashed.hexdigest()


def save(model: ir.Model, path: Path) -> None:
    """Write a graph, and beside it those of its weights that no other graph there has.

    Args:
        model: Graph to write; afterwards its weights refer to those on disk.
        path: Path of the ``.onnx`` file; its own weights go to `path` + ``.data``.
    """
    data = path.with_name(f"{path.name}.data")
    data.unlink(missing_ok=True)  # It may be a link to a file in use, which must not be overwritten.
    known = _Known(path)
    values = model.graph.initializers.values()
    weights = {value: tensor for value in values if (tensor := _large(value)) is not None}
    places = {value: place for value, tensor in weights.items() if (place := known.place(tensor)) is not None}
    if len(places) < len(weights):
        with data.open("wb") as file:
            places |= {
                value: _written(tensor, file, data)
                for value, tensor in weights.items()
                if value not in places
            }
    for value, place in places.items():
        value.const_value = _external(weights[value], str(value.name), place)
    ir.save(model, path)


def save_again(path: Path) -> None:
    """Rewrite a graph that is already on disk as :func:`save` does; meanwhile its weights are in memory."""
    save(ir.from_proto(onnx.load(path)), path)


class _Known:
    """Weights of the other graphs in a folder, by size; they are read only if the size matches."""

    def __init__(self, path: Path) -> None:
        self._places: dict[int, set[_Place]] = {}
        for graph in sorted(path.parent.glob(f"*{path.suffix}")):
            if graph != path:
                for place in _places(graph):
                    self._places.setdefault(place.length, set()).add(place)
        self._digests: dict[int, dict[str, _Place]] = {}

    def place(self, tensor: ir.TensorProtocol) -> _Place | None:
        """Return the place of a tensor's bytes if they are on disk already; otherwise None."""
        size = tensor.nbytes
        if size not in self._places:
            return None
        if size not in self._digests:
            self._digests[size] = {place.digest(): place for place in self._places[size]}
        hashed = _Hashed()
        _write(tensor, hashed)
        return self._digests[size].get(hashed.digest.hexdigest())


class _Hashed:
    """A file object that only hashes what is written to it."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, part: Any) -> int:
        with memoryview(part) as view:
            self.digest.update(view.cast("B"))
            return view.nbytes


def _places(graph: Path) -> Iterator[_Place]:
    """Yield the places of the weights of a written graph."""
    for weight in onnx.load(graph, load_external_data=False).graph.initializer:
        entries = {entry.key: entry.value for entry in weight.external_data}
        if entries:
            yield _Place(
                graph.parent / entries["location"], int(entries.get("offset", 0)), int(entries["length"])
            )


def _large(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of a weight that is to be stored outside the graph; None for others."""
    tensor = value.const_value
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return None
    return tensor if tensor.nbytes >= _FROM_BYTES else None


def _written(tensor: ir.TensorProtocol, file: IO[bytes], path: Path) -> _Place:
    file.write(bytes(-file.tell() % _ALIGNMENT))
    offset = file.tell()
    _write(tensor, file)
    return _Place(path, offset, file.tell() - offset)


def _write(tensor: ir.TensorProtocol, file: IO[bytes] | _Hashed) -> None:
    if hasattr(tensor, "tofile"):  # Not part of the protocol, but tensors that are read from disk have it.
        tensor.tofile(file)
    else:
        file.write(tensor.tobytes())


def _external(tensor: ir.TensorProtocol, name: str, place: _Place) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        place.file.name, place.offset, place.length, tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()), name=name, base_dir=place.file.parent,
    )  # fmt: skip
