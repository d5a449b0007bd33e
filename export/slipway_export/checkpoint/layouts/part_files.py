"""Parts of a checkpoint that are single files, presented as folders in diffusers' layout.

The folder has a link to the file, `layout.json` that names it, and a `config.json` that follows from its
shapes. Its tensors get the library's names when they are read (:func:`tensors_of_part`), so nothing is
converted on disk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipway_export.checkpoint.layouts.configs import other_network
from slipway_export.checkpoint.layouts.networks import config_of, part_kind, recognize, translated
from slipway_export.checkpoint.layouts.scales import is_fp8, with_scales
from slipway_export.checkpoint.layouts.tensor_files import tensors_of
from slipway_export.checkpoint.layouts.weight_files import LAYOUT_FILE
from slipway_export.checkpoint.stored_weights import StoredTensor
from slipway_serving.protocol.errors import InvalidRequest

_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")
_LORA = re.compile(r"\.(lora_(A|B|up|down)\b|dora_scale)")


def link_part(folder: Path, part: str, files: list[Path]) -> None:
    """Present files as the folder of a part, without its configuration.

    Args:
        folder: Folder of the part, which is made.
        part: Name of the part.
        files: Files of its tensors: one, or all shards.

    Raises:
        InvalidRequest: The files contain no network for this part.
    """
    where = f"part {part} from {files[0]}"
    stored = _tensors(files, where)
    _check_content(stored, part, files[0], where)
    folder.mkdir(parents=True)
    for file in files:
        (folder / file.name).symlink_to(file.absolute())
    recognized = recognize(stored, part)
    described = "names of the library" if recognized is None else recognized.summary
    content = {"layout": described + (", fp8" if is_fp8(stored) else ""), "files": [f.name for f in files]}
    (folder / LAYOUT_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_config(folder: Path, part: str, base: Path) -> None:
    """Write the configuration of a part that :func:`link_part` made, unless it has one.

    Args:
        folder: Folder of the part.
        part: Name of the part.
        base: Folder of the checkpoint that the part replaces a part of; it may lack the part.

    Raises:
        InvalidRequest: Neither the shapes nor a configuration beside the file or of the checkpoint describe
            the network.
    """
    if (folder / "config.json").exists():
        return
    files = [folder / name for name in json.loads((folder / LAYOUT_FILE).read_text("utf-8"))["files"]]
    where = f"part {part} from {files[0].readlink()}"
    beside = _config_in(files[0].readlink().parent)
    stated = beside or _config_in(base / part) or {}
    stored = _tensors(files, where)
    recognized = recognize(stored, part)
    if recognized is not None:
        config = config_of(stored, recognized, where, stated)
    elif stated:
        config = dict(stated)
    else:
        raise InvalidRequest(
            f"{where} must have a config.json beside it, got none; try --checkpoint with the model that the"
            " file belongs to, whose configuration is used"
        )
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def shards_of(file: Path) -> list[Path]:
    """Return a file, or all shards if it is one of them, in order.

    Raises:
        InvalidRequest: A shard is missing.
    """
    shards = [file.with_name(name) for name in shard_names(file.name)]
    if len(shards) > 1 and (missing := [shard.name for shard in shards if not shard.is_file()]):
        raise InvalidRequest(
            f"file {file} must have all shards beside it, got none of {', '.join(missing[:5])}"
        )
    return shards


def shard_names(name: str) -> list[str]:
    """Return the name of a file, or the names of all shards if it is one of them, in order."""
    found = _SHARD.fullmatch(name)
    if not found:
        return [name]
    stem, _, count, suffix = found.groups()
    return [f"{stem}-{i:05}-of-{count}{suffix}" for i in range(1, int(count) + 1)]


def tensors_of_part(stored: Mapping[str, StoredTensor], part: str, where: str) -> dict[str, StoredTensor]:
    """Return the tensors of a presented part under the library's names.

    Args:
        stored: Tensors of the part's files by their keys.
        part: Name of the part.
        where: Name of the part in messages.

    Raises:
        InvalidRequest: The network has no such tensors, or weights are quantized in a way that is not read.
    """
    recognized = recognize(stored, part)
    return with_scales(stored, where) if recognized is None else translated(stored, recognized, where)


def described(file: Path) -> str | None:
    """Return what a file of tensors is, and the options that it is exported with; None if it is unknown."""
    stored = tensors_of(file, "checkpoint", str(file))
    if any(_LORA.search(key) for key in stored):
        return f"a LoRA; try --lora {file} beside --checkpoint"
    if (other := other_network(stored)) is not None:
        return f"the transformer of {other}, which is of no family here"
    recognized = recognize(stored)
    if recognized is None:
        return None
    part = recognized.layout.part
    kind = f"a {recognized.summary}{', fp8' if is_fp8(stored) else ''}"
    return f"{kind}; try --checkpoint with a whole checkpoint, and --part {part}={file}"


def _tensors(files: list[Path], where: str) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for file in files:
        found |= tensors_of(file, where, file.name)
    return found


def _check_content(stored: Mapping[str, StoredTensor], part: str, file: Path, where: str) -> None:
    """Refuse a file that is known to be something else than a part's network."""
    if any(_LORA.search(key) for key in stored):
        raise InvalidRequest(f"{where} must contain all weights of a network, got a LoRA; try --lora {file}")
    if (other := other_network(stored)) is not None:
        raise InvalidRequest(
            f"{where} must be a network of a family of `slipway families`, got the transformer of {other}"
        )
    found = recognize(stored)
    if found is not None and recognize(stored, part) is None and found.layout.part != part_kind(part):
        raise InvalidRequest(
            f"{where} must contain the network of this part, got {found.summary}; try --part"
            f" {found.layout.part}={file}"
        )


def _config_in(folder: Path) -> dict[str, Any] | None:
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
