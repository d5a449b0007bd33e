"""Files of tensors: safetensors, `torch.save` and GGUF, each with the location of its tensors by key.

Only headers are read. A `torch.save` file is opened by the restricted unpickler, which runs no code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from slipway_export.checkpoint.layouts.computed import (
    GgufTensor,
    TorchFileTensor,
    gguf_reader,
    gguf_tensors,
)
from slipway_export.checkpoint.stored_weights import DTYPES, StoredTensor
from slipway_export.checkpoint.torch_file import STATE_ENTRIES, read_torch_file
from slipway_serving.protocol.errors import InvalidRequest

SAFETENSORS, GGUF = ".safetensors", ".gguf"
TORCH = (".bin", ".pth", ".pt", ".ckpt")
SUFFIXES = (SAFETENSORS, *TORCH, GGUF)
"""Suffixes of files that contain tensors."""

_ORIGINAL_SHAPE = "comfy.gguf.orig_shape."


def tensors_of(path: Path, where: str, file: str) -> dict[str, StoredTensor]:
    """Return the location of every tensor of a file, by key.

    Args:
        path: Path of the file.
        where: Source of the file, for messages.
        file: Name of the file, for messages.

    Raises:
        InvalidRequest: The file is missing, truncated, or of another kind, or would run code.
    """
    if not path.is_file():
        raise InvalidRequest(f"{where}: file {file} is missing")
    if path.suffix in TORCH:
        return _of_torch_file(path, f"{where}: {file}")
    if path.suffix == GGUF:
        return _of_gguf(path, f"{where}: {file}")
    return _of_safetensors(path, where, file)


def _of_safetensors(path: Path, where: str, file: str) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    try:
        with safe_open(path, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118
                tensor = tensors.get_slice(key)
                found[key] = StoredTensor(path, key, tuple(tensor.get_shape()), DTYPES[tensor.get_dtype()])
    except KeyError as error:
        raise InvalidRequest(
            f"{where}: {file} must contain only tensors of the types {', '.join(DTYPES)}, got {error}"
        ) from None
    except (SafetensorError, OSError) as error:
        raise InvalidRequest(
            f"{where}: {file} must be a complete safetensors file, got {error}; try to copy it again"
        ) from None
    return found


def _of_torch_file(path: Path, what: str) -> dict[str, StoredTensor]:
    content: dict[str, Any] = read_torch_file(path, what, mapped=True)
    owner = next((name for name in STATE_ENTRIES if isinstance(content.get(name), dict)), "")
    tensors = content[owner] if owner else content
    others = [key for key, value in tensors.items() if not isinstance(value, torch.Tensor)]
    if others or not tensors:
        shown = ", ".join(map(str, others[:3])) or "nothing"
        raise InvalidRequest(f"{what} must hold tensors by name, got {shown}")
    return {
        str(key): TorchFileTensor(path, str(key), tuple(tensor.shape), tensor.dtype, owner)
        for key, tensor in tensors.items()
    }


def _of_gguf(path: Path, what: str) -> dict[str, StoredTensor]:
    try:
        import gguf
    except ImportError:
        raise InvalidRequest(
            f"{what} requires the package gguf, which is not installed; try pip install"
            " 'slipway-triton[gguf]'"
        ) from None
    try:
        changed_ns = path.stat().st_mtime_ns
        tensors = gguf_tensors(path, changed_ns)
        shapes = _original_shapes(gguf_reader(path, changed_ns), tensors)
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise InvalidRequest(
            f"{what} must be a complete GGUF file, got {error}; try to copy it again"
        ) from None
    known = {*gguf.quants._type_traits, gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16}
    if unknown := sorted(
        {each.tensor_type.name for each in tensors.values() if each.tensor_type not in known}
    ):
        raise InvalidRequest(
            f"{what} must have tensors of types that the package gguf dequantizes, got {', '.join(unknown)};"
            " try a file in Q8_0 or Q6_K"
        )
    return {
        name: GgufTensor(path, name, shapes[name], torch.float32, int(each.n_bytes))
        for name, each in tensors.items()
    }


def _original_shapes(reader: Any, tensors: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a GGUF file's tensors; those of more than four dimensions are in its metadata."""
    shapes = {}
    for name, tensor in tensors.items():
        field = reader.get_field(_ORIGINAL_SHAPE + name)
        own = [int(size) for size in reversed(tensor.shape)]
        shapes[name] = tuple(own if field is None else [int(field.parts[i][0]) for i in field.data])
    return shapes
