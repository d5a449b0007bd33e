"""Names of the weight files in a part's folder: safetensors, their variants, and files of `torch.save`.

A variant has a word in its names: `diffusion_pytorch_model.fp16.safetensors`, for shards
`diffusion_pytorch_model.safetensors.index.fp16.json`. It is chosen if the user names it, or where the files
without a variant are missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from slipway_serving.protocol.errors import InvalidRequest

STEMS = ("diffusion_pytorch_model.safetensors", "model.safetensors")
"""Names that the libraries look for themselves."""
PICKLED = ("diffusion_pytorch_model.bin", "pytorch_model.bin")
"""Names of weights in `torch.save` files."""

LAYOUT_FILE = "layout.json"
"""File of a presented part (`part_files.py`) that names the files of its tensors."""

_INDEX = ".index.json"
_VARIANT = re.compile(
    r"(?P<stem>diffusion_pytorch_model|model|pytorch_model)"
    r"(?:\.(?P<whole>[\w-]+)\.(?:safetensors|bin)|\.(?:safetensors|bin)\.index\.(?P<index>\w+)\.json)"
)
_SHARD = re.compile(r".*-\d{5}-of-\d{5}")


@dataclass(frozen=True)
class WeightFiles:
    """Weight files of a part.

    Args:
        entry: Name of the single file, or of the index of shards.
        variant: Word of the variant; empty for the files without one.
    """

    entry: str
    variant: str = ""

    @property
    def is_index(self) -> bool:
        """Whether the entry names shards."""
        return self.entry.endswith(".json")

    @property
    def library_names(self) -> tuple[str, ...]:
        """File names under which a library may look for the weights."""
        stem = self.entry.removesuffix(_INDEX)
        return (stem,) if stem in STEMS else STEMS

    @property
    def is_read_by_library(self) -> bool:
        """Whether the libraries read these files themselves."""
        return self.entry.removesuffix(_INDEX) in STEMS


def find_weights(
    names: Collection[str], has: Callable[[str], bool], where: str, wanted: str = ""
) -> WeightFiles | None:
    """Return the weight files in a part's folder; None if it has none.

    Args:
        names: Names of the files in the folder.
        has: Function that returns whether a file exists, given its name, and records that it was looked for.
        where: Name of the part in messages.
        wanted: Word of the variant that is chosen if the folder has it; empty for none.

    Raises:
        InvalidRequest: The folder has several variants and no files without one.
    """
    variants = variants_in(names)
    if wanted in variants and has(variants[wanted]):
        return WeightFiles(variants[wanted], wanted)
    for stem in STEMS:
        for name in (stem + _INDEX, stem):
            if has(name):
                return WeightFiles(name)
    if variants:
        if len(variants) > 1:
            shown = ", ".join(sorted(variants))
            tries = " or ".join(f"--variant-file {word}" for word in sorted(variants))
            raise InvalidRequest(f"{where} must have one variant of weights, got {shown}; try {tries}")
        ((variant, name),) = variants.items()
        if has(name):
            return WeightFiles(name, variant)
    for stem in PICKLED:
        for name in (stem + _INDEX, stem):
            if has(name):
                return WeightFiles(name)
    return None


def origin(folder: Path) -> Path:
    """Return the folder of the files that a folder presents; the folder itself if it presents none."""
    for layout in (folder / LAYOUT_FILE, folder / "transformer" / LAYOUT_FILE):
        if layout.is_file():
            name = json.loads(layout.read_text(encoding="utf-8"))["files"][0]
            link = layout.with_name(name)
            return link.readlink().parent if link.is_symlink() else folder
    return folder


def commit_of(path: Path) -> str | None:
    """Return the commit of a folder in the hub's cache or of a folder inside it; None for other folders."""
    parts = origin(path).parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-1] else None


def variants_in(names: Collection[str]) -> dict[str, str]:
    """Return the entry of each variant among files, by the variant's word; an index goes before a file."""
    entries: dict[str, str] = {}
    for name in sorted(names):
        found = _VARIANT.fullmatch(name)
        if found is None or (found["whole"] and _SHARD.fullmatch(name.rpartition(".")[0])):
            continue
        word = str(found["whole"] or found["index"])
        if found["index"] or word not in entries:
            entries[word] = name
    return entries
