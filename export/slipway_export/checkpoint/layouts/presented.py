"""Checkpoints and parts in other layouts, presented in a temporary folder when a checkpoint is opened.

:func:`presented_part` makes the folder of a part that is a single file; :func:`readable_folder` that of a
whole checkpoint. :func:`write_configs` follows when the checkpoint is known that the parts are used with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from slipway_serving.protocol.errors import InvalidRequest

PRESENTED_PREFIX = "slipway-presented-"
"""Name prefix of the temporary folders in which other layouts are presented."""

_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt", ".gguf")
COMFY_FILES = {
    "transformer": "diffusion_models/*high_noise*",
    "transformer_2": "diffusion_models/*low_noise*",
    "text_encoder": "text_encoders/*umt5*",
    "vae": "vae/*wan*",
}
"""Pattern of the public files of each part in ComfyUI's folder of models."""
_HUB_FILE = re.compile(r"^([A-Za-z0-9][\w.-]*/[\w.-]+)/([\w./-]+)$")


def is_tensor_file(path: Path) -> bool:
    """Return whether a path is a file that may contain tensors."""
    return path.suffix in _SUFFIXES and path.is_file()


def network_file_as_checkpoint(file: Path) -> InvalidRequest | None:
    """Return the refusal of a file of tensors that was given as a checkpoint; None for any other file."""
    from slipway_export.checkpoint.layouts.part_files import described

    if not is_tensor_file(file):
        return None
    try:
        what = described(file)
    except InvalidRequest:  # A file that is not readable is no known network either.
        return None
    return None if what is None else InvalidRequest(f"checkpoint must be a folder, got {file}, {what}")


def presented_part(
    part: str, source: str, folder: Path, download: Callable[[str, str, str], Path] | None
) -> Path | None:
    """Present a part that is a single file; return its folder, or None if the source is no file.

    Args:
        part: Name of the part.
        source: Path of the file, or its path in a hub repository after the hub id.
        folder: Temporary folder.
        download: Function that downloads a file for a part and returns its location, given the part, the hub
            id and the file's path; None to download nothing.

    Raises:
        InvalidRequest: The file contains no network for this part.
    """
    path = Path(source)
    if path.suffix not in _SUFFIXES or path.is_dir():
        return None
    if not path.exists():
        found = _HUB_FILE.match(source)
        if found is None:
            raise InvalidRequest(f"part {part} must be a folder, a file or a hub id, got {source!r}")
        path = (_cached if download is None else download)(part, found[1], found[2])
    from slipway_export.checkpoint.layouts.part_files import link_part, shards_of

    link_part(folder / part, part, shards_of(path))
    return folder / part


def readable_folder(folder: Path, presented: Path) -> Path:
    """Return a folder in diffusers' layout: the folder, the snapshot in a hub cache, or a presentation of it.

    Args:
        folder: Folder that the user named.
        presented: Temporary folder.

    Raises:
        InvalidRequest: The folder is in another layout that is not read.
    """
    from slipway_export.checkpoint.layouts.wan_folder import is_original, present

    folder = _snapshot(folder)
    if (folder / "model_index.json").exists():
        return folder
    if not is_original(folder):
        _refuse_comfy(folder)
        return folder
    whole = presented / "checkpoint"
    whole.mkdir()
    present(folder, whole)
    return whole


def write_configs(presented: Path, parts: Iterable[str], base: Path) -> None:
    """Write the configurations of the presented parts that have none.

    Args:
        presented: Temporary folder.
        parts: Names of all parts that do not come from the checkpoint.
        base: Folder of the checkpoint.
    """
    names = [part for part in parts if (presented / part).is_dir()]
    if names:
        from slipway_export.checkpoint.layouts.part_files import write_config

        for part in names:
            write_config(presented / part, part, base)


def _refuse_comfy(folder: Path) -> None:
    """Refuse ComfyUI's folder of models, whose files are parts, with the options that name them."""
    root = next(
        (each for each in (folder, folder / "split_files", folder / "models") if _is_comfy(each)), None
    )
    if root is None:
        return
    options = [
        f"--part {part}={found[0]}"
        for part, pattern in COMFY_FILES.items()
        if (found := sorted(file for file in root.glob(pattern) if is_tensor_file(file)))
    ]
    raise InvalidRequest(
        f"checkpoint {folder} must be in diffusers' layout, got ComfyUI's folder of single files; try"
        f" --checkpoint with a whole checkpoint, and {' '.join(options) or '--part NAME=FILE'}"
    )


def _is_comfy(folder: Path) -> bool:
    return (folder / "diffusion_models").is_dir()


def _cached(part: str, hub_id: str, file: str) -> Path:
    """Return a file of a hub repository that was downloaded before."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(hub_id, file)
    if not isinstance(found, str):
        raise InvalidRequest(
            f"part {part} must be a file on this machine for a plan, which downloads no weights, got {hub_id}"
            f"/{file}; try hf download {hub_id} {file} first"
        )
    return Path(found)


def _snapshot(folder: Path) -> Path:
    """Return the snapshot in a folder of the hub cache (`models--OWNER--NAME`); other folders as they are."""
    snapshots = folder / "snapshots"
    if not folder.name.startswith("models--") or not snapshots.is_dir():
        return folder
    main = folder / "refs/main"
    if main.is_file() and (named := snapshots / main.read_text(encoding="utf-8").strip()).is_dir():
        return named
    found = sorted(snapshots.iterdir())
    if len(found) != 1:
        shown = ", ".join(each.name for each in found) or "none"
        raise InvalidRequest(f"checkpoint {folder} must have one snapshot or a refs/main, got {shown}")
    return found[0]
