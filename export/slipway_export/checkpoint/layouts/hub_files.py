"""Files of hub repositories in other layouts than diffusers': single files, and Wan's original folders.

Their layout follows from the headers of the files, so these are downloaded before the checkpoint is opened.
The file list and the configurations are looked at first.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

from slipway_export.checkpoint.hub import HubFolder, download_needed, look
from slipway_export.checkpoint.layouts.presented import COMFY_FILES
from slipway_export.checkpoint.layouts.wan_folder import check_type, files_of_original, is_config, is_original
from slipway_export.progress import Report
from slipway_serving.protocol.errors import InvalidRequest


def file_in_hub(part: str, hub_id: str, file: str) -> Path:
    """Download a file of a hub repository for a part, with its other shards; return its location.

    Args:
        part: Name of the part.
        hub_id: Id of the repository.
        file: Path of the file in it.

    Raises:
        HubDiskFull: The disk is too small; nothing was downloaded.
        InvalidRequest: The repository has no such file, or cannot be reached.
    """
    from slipway_export.checkpoint.layouts.part_files import shard_names

    folder = HubFolder(look(hub_id, f"part {part}"))
    if not folder.has(file):
        raise InvalidRequest(f"part {part} must be a file in hub repository {hub_id}, got {file}")
    place = Path(file).parent
    config = (place / "config.json").as_posix()
    names = [(place / name).as_posix() for name in shard_names(Path(file).name)]
    _download(folder, [name for name in (config, *names) if folder.has(name)], None)
    return folder.path / file


def original_in_hub(hub: HubFolder, configurations_only: bool, report: Report | None) -> Path | None:
    """Download a repository in Wan's original layout; return its folder, or None for any other layout.

    Args:
        hub: Repository.
        configurations_only: True if no weights may be downloaded.
        report: Callback that receives a line for the download, if any.

    Raises:
        HubDiskFull: The disk is too small; nothing was downloaded.
        InvalidRequest: The model is not read in this layout, or would have to be downloaded.
    """
    if hub.repository.cached is not None:
        return hub.path if is_original(hub.path) else None
    files = files_of_original(hub.sizes)
    if not files:
        return None
    _download(hub, [file for file in files if is_config(file)], None)
    hub_id = hub.repository.hub_id
    check_type(hub.path, hub_id)
    if configurations_only and hub.repository.missing(files):
        raise InvalidRequest(
            f"checkpoint {hub_id} must be on this machine for a plan, since it is in Wan's original layout,"
            f" which the headers of its weights describe; try hf download {hub_id} first"
        )
    _download(hub, files, report)
    return hub.path


def refuse_comfy(hub: HubFolder) -> None:
    """Refuse a repository of ComfyUI's single files, which are parts, with the options that name them.

    Args:
        hub: Repository.

    Raises:
        InvalidRequest: The repository has such files, and is no checkpoint in diffusers' layout.
    """
    options = [
        f"--part {part}={hub.place(found[0])}"
        for part, pattern in COMFY_FILES.items()
        if (
            found := sorted(file for file in hub.sizes if fnmatchcase(f"/{file}", f"*/{pattern}.safetensors"))
        )
    ]
    if len(options) > 1 and not hub.has("model_index.json"):
        raise InvalidRequest(
            f"checkpoint {hub.repository.hub_id} must be in diffusers' layout, got ComfyUI's single files;"
            f" try --checkpoint with a whole checkpoint, and {' '.join(options)}"
        )


def _download(folder: HubFolder, files: Collection[str], report: Report | None) -> None:
    """Download files that the cache lacks, if the hub was asked for their names."""
    if folder.repository.cached is None:
        download_needed([(folder, files)], report)
