"""Writer of networks of any size with random weights, in `save_pretrained`'s format and in little memory.

A network comes without memory (on the meta device), and huggingface_hub distributes its tensors over shards.
Each tensor is then generated from the seed and its own name, a chunk at a time, and appended to its file. So
only a piece of one tensor is in memory, and the same seed gives the same bytes on any machine. Without a
seed, the files have no content and take no space, for where configurations suffice.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from huggingface_hub import StateDictSplit, split_torch_state_dict_into_shards
from torch import Tensor, nn

from slipway_export.checkpoint.stored_weights import safetensors_header, write_empty
from slipway_serving.protocol.errors import InvalidRequest

SHARD_BYTES = 10**9
# Count of numbers that are drawn at a time. A change of it would change the weights.
_CHUNK = 1 << 22
# Biases and norms differ slightly from their initial values in training, so that a missing one is noticed.
_BIAS_STD = 0.02
_NORM_STD = 0.05


@dataclass(frozen=True)
class Normal:
    """Normal distribution of the numbers of a tensor."""

    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True)
class RandomPart:
    """A part of a checkpoint that gets random weights.

    Args:
        folder: Name of its folder in the checkpoint.
        network: Network without memory, with the dtypes that its tensors are to have.
        stem: Stem of its weight files, ``model`` or ``diffusion_pytorch_model``.
        rules: Patterns of keys and the distributions of their tensors; the first match counts. By default a
            bias is near 0, the weight of a norm near 1, and any other tensor keeps the variance of its input.
        prefix: Prefix of the keys in the files, as an earlier release of the network's library wrote them.
    """

    folder: str
    network: nn.Module
    stem: str
    rules: Sequence[tuple[str, Normal]] = ()
    prefix: str = ""

    def tensors(self) -> dict[str, Tensor]:
        """Return the stored tensors by key; of tied weights, only the one that the others are tied to."""
        tied = getattr(self.network, "_tied_weights_keys", None) or {}
        stored = self.network.state_dict().items()
        return {self.prefix + key: tensor for key, tensor in stored if key not in tied}

    @property
    def bytes(self) -> int:
        """Size of all its tensors, in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def distribution(self, key: str, shape: Sequence[int]) -> Normal:
        """Return the distribution of a tensor's numbers."""
        for pattern, normal in self.rules:
            if fnmatchcase(key, pattern):
                return normal
        if key.endswith("bias"):
            return Normal(std=_BIAS_STD)
        fan_in = math.prod(shape[1:])
        return Normal(std=fan_in**-0.5) if fan_in > 1 else Normal(mean=1.0, std=_NORM_STD)


def check_space(folder: Path, parts: Sequence[RandomPart]) -> None:
    """Refuse a disk that is too small for the parts.

    Raises:
        InvalidRequest: The disk is too small; the message gives the needed and the free space.
    """
    needed, free = sum(part.bytes for part in parts), shutil.disk_usage(folder).free
    if needed > free:
        raise InvalidRequest(
            f"checkpoint: the disk of {folder} must have {needed / 1e9:.1f} GB free, got {free / 1e9:.1f} GB;"
            " try `slipway checkpoint` with an --output on another disk, and that folder as --checkpoint"
        )


def write_part(folder: Path, part: RandomPart, seed: int | None, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a part's weight files, and their index if there are several.

    Args:
        folder: Folder of the checkpoint.
        part: Part to write.
        seed: Seed of the checkpoint; its parts differ in spite of a common seed. None writes files without
            content.
        shard_bytes: Largest size of a file in bytes, unless a single tensor is larger.
    """
    place = folder / part.folder
    place.mkdir(parents=True, exist_ok=True)
    tensors = part.tensors()
    split = split_torch_state_dict_into_shards(
        tensors, filename_pattern=part.stem + "{suffix}.safetensors", max_shard_size=shard_bytes
    )
    for name, keys in split.filename_to_tensors.items():
        described = {key: (tensors[key].dtype, tuple(tensors[key].shape)) for key in keys}
        if seed is None:
            write_empty(place / name, described)
            continue
        with (place / name).open("wb") as out:
            out.write(safetensors_header(described)[0])
            for key, (dtype, shape) in described.items():
                source = f"{seed}/{part.folder}/{key}"
                for numbers in _numbers(source, part.distribution(key, shape), math.prod(shape)):
                    out.write(numbers.to(dtype).view(torch.uint8).numpy().data)
    if split.is_sharded:
        _write_index(place / f"{part.stem}.safetensors.index.json", split)


def _write_index(path: Path, split: StateDictSplit) -> None:
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _numbers(source: str, normal: Normal, count: int) -> Iterator[Tensor]:
    """Draw a tensor's numbers in float32, a chunk at a time."""
    digest = hashlib.sha256(source.encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    for begin in range(0, count, _CHUNK):
        size = min(_CHUNK, count - begin)
        yield torch.empty(size).normal_(normal.mean, normal.std, generator=generator)
