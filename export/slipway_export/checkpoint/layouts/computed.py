"""Tensors that are computed when they are read: of other files than safetensors, and of scaled fp8.

Each is a :class:`StoredTensor` with the shape that the network expects, and a type that represents every
value exactly. Only the tensor or the rows that are asked for are in memory.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from slipway_export.checkpoint.stored_weights import StoredTensor
from slipway_export.checkpoint.torch_file import read_torch_file

if TYPE_CHECKING:
    import gguf


@dataclass(frozen=True)
class TorchFileTensor(StoredTensor):
    """Tensor in a file of `torch.save`, which is mapped.

    Args:
        owner: Key of the dictionary that contains the tensor; empty for the file's own.
    """

    owner: str = ""

    def read(self, begin: int | None = None, end: int | None = None) -> torch.Tensor:
        """Read the tensor, or rows of it; its memory is the mapped file until it is written to."""
        state = mapped_state(self.file, self.file.stat().st_mtime_ns)
        whole: torch.Tensor = (state[self.owner] if self.owner else state)[self.key]
        return whole if begin is None or not self.shape else whole[begin:end]


@lru_cache(maxsize=2)
def mapped_state(path: Path, changed_ns: int) -> dict[str, Any]:
    """Return the content of a file of `torch.save`, whose tensors stay in the file.

    Args:
        path: Path of the file.
        changed_ns: Time of its last change, which makes a changed file be read again.

    Raises:
        InvalidRequest: The file would run code, or is of another kind.
    """
    return read_torch_file(path, str(path), mapped=True)


@dataclass(frozen=True)
class WidenedTensor(StoredTensor):
    """Float32 values of a tensor that is stored in fp8, multiplied by its scale if it has one.

    Args:
        narrow: Stored tensor.
        scale: Stored factor of all values, or of each row; None for 1.
    """

    narrow: StoredTensor | None = None
    scale: StoredTensor | None = None

    @property
    def disk_bytes(self) -> int:
        """Size on disk, in bytes."""
        return _stored(self).disk_bytes

    def read(self, begin: int | None = None, end: int | None = None) -> torch.Tensor:
        """Read the tensor, or rows of it, in float32."""
        values = _stored(self).read(begin, end).to(torch.float32)
        if self.scale is None:
            return values
        scale = self.scale.read().to(torch.float32).flatten()
        if scale.numel() > 1:
            scale = scale[begin:end].reshape(-1, *[1] * (values.ndim - 1))
        return values * scale

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Read single rows, in float32."""
        # Lookups of fp8 are not implemented on all devices; those of bytes are.
        stored = _stored(self).read()
        found = stored.view(torch.uint8)[indices].view(stored.dtype).to(torch.float32)
        if self.scale is None:
            return found
        scale = self.scale.read().to(torch.float32).flatten()
        return found * (scale if scale.numel() == 1 else scale[indices].unsqueeze(-1))


def _stored(tensor: WidenedTensor) -> StoredTensor:
    assert tensor.narrow is not None  # A default is needed only because the fields of the base come first.
    return tensor.narrow


def widened(narrow: StoredTensor, scale: StoredTensor | None = None) -> WidenedTensor:
    """Return the float32 values of an fp8 tensor.

    Args:
        narrow: Stored tensor.
        scale: Stored factor of all values, or of each row; None for 1.
    """
    return WidenedTensor(narrow.file, narrow.key, narrow.shape, torch.float32, narrow, scale)


@dataclass(frozen=True)
class GgufTensor(StoredTensor):
    """Float32 values of a tensor in a GGUF file, of any type that the package `gguf` dequantizes.

    Args:
        quantized_bytes: Size on disk, in bytes.
    """

    quantized_bytes: int = 0

    @property
    def disk_bytes(self) -> int:
        """Size on disk, in bytes."""
        return self.quantized_bytes

    def read(self, begin: int | None = None, end: int | None = None) -> torch.Tensor:
        """Read the tensor, or rows of it, in float32."""
        changed_ns = self.file.stat().st_mtime_ns
        found = gguf_tensors(self.file, changed_ns)[self.key]
        # A tensor whose rows were joined for the sake of the blocks is dequantized whole.
        cut = begin is not None and bool(self.shape) and len(found.data) == self.shape[0]
        values = _dequantized(found, found.data[begin:end] if cut else found.data)
        values = values.reshape(-1, *self.shape[1:]) if self.shape else values.reshape(())
        _release_pages(gguf_reader(self.file, changed_ns))
        return values if cut or begin is None or not self.shape else values[begin:end]

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Read single rows, in float32."""
        found = gguf_tensors(self.file, self.file.stat().st_mtime_ns)[self.key]
        if len(found.data) != self.shape[0]:
            return self.read()[indices]
        values = _dequantized(found, found.data[indices.flatten().numpy()])
        return values.reshape(*indices.shape, *self.shape[1:])


@lru_cache(maxsize=2)
def gguf_tensors(path: Path, changed_ns: int) -> dict[str, gguf.ReaderTensor]:
    """Return the tensors of a GGUF file by name; their values stay in the file.

    Args:
        path: Path of the file.
        changed_ns: Time of its last change, which makes a changed file be read again.
    """
    return {tensor.name: tensor for tensor in gguf_reader(path, changed_ns).tensors}


@lru_cache(maxsize=2)
def gguf_reader(path: Path, changed_ns: int) -> gguf.GGUFReader:
    """Return the reader of a GGUF file, kept because the vocabulary in a file takes seconds to parse.

    Args:
        path: Path of the file.
        changed_ns: Time of its last change, which makes a changed file be read again.
    """
    import gguf

    return gguf.GGUFReader(path)


def _release_pages(reader: gguf.GGUFReader) -> None:
    """Let go of the pages of a mapped file, which would count as the memory of this process."""
    mapped = getattr(reader.data, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        # The mapping is read only, so that a later read finds the same values in the file.
        mapped.madvise(mmap.MADV_DONTNEED)


def _dequantized(tensor: gguf.ReaderTensor, data: Any) -> torch.Tensor:
    import numpy as np
    from gguf import quants

    values = quants.dequantize(np.ascontiguousarray(data), tensor.tensor_type)
    return torch.from_numpy(np.array(values, dtype=np.float32))
