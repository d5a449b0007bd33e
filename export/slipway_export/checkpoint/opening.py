"""Opening of a checkpoint from a preset, a folder, a hub id, single files, or separate parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from slipway_export.checkpoint.checkpoint import NOT_NEEDED, Checkpoint, PartLocation
from slipway_export.checkpoint.named_files import CHECKPOINT_PREFIX, linked
from slipway_export.spec import Family
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.system.temporary_folders import TemporaryFolder

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_HUB_FOLDER = re.compile(r"^([A-Za-z0-9][\w.-]*/[\w.-]+)/([\w./-]+)$")


@contextmanager
def open_checkpoint(
    family: Family,
    source: str,
    parts: Mapping[str, str] | None = None,
    files: Mapping[str, Path] | None = None,
    *,
    configurations_only: bool = False,
) -> Iterator[Checkpoint]:
    """Find a checkpoint and check its layout.

    Args:
        family: Family whose layout the checkpoint must have.
        source: Name of a preset (which is written into a temporary folder), a folder, or a hub id. Empty if
            only files or parts are given; with parts alone, the plan has the components made from these.
        parts: Folder or hub id of each part that does not come from the checkpoint, by name; a folder within
            the hub repository may follow a hub id.
        files: Checkpoint files by role of the family, instead of a source. Other files of the layout may be
            missing; the plan then covers the files that exist.
        configurations_only: True if the checkpoint's configurations suffice. Weight files may then be
            missing, those of a hub id are not downloaded, and those of a preset have no content.

    Raises:
        InvalidRequest: The source is none of these, a file is missing, the family has no such part, or the
            layout is not complete.
    """
    locations = _part_locations(family, parts or {}, configurations_only)
    if files:
        with linked(family, files) as (folder, name):
            yield Checkpoint(folder, name, configurations_only=configurations_only)
        return
    if locations and not source:
        with TemporaryFolder(CHECKPOINT_PREFIX) as folder:
            checkpoint = Checkpoint(folder, source, locations, configurations_only)
            checkpoint.check_layout(tuple(p for p in family.parts if p.name in locations), _what(family))
            yield checkpoint
        return
    if preset := family.presets.get(source):
        with TemporaryFolder(CHECKPOINT_PREFIX) as folder:
            if configurations_only and preset.write_empty is not None:
                preset.write_empty(folder)
            else:
                preset.write(folder, 0)
            checkpoint = Checkpoint(folder, source, locations, configurations_only)
            checkpoint.check_layout(family.layout, _what(family))
            yield checkpoint
        return
    if Path(source).is_dir():
        checkpoint = Checkpoint(Path(source).resolve(), source, locations, configurations_only)
    elif _HUB_ID.match(source) and not Path(source).exists():
        # Parts that come from elsewhere are not downloaded with the checkpoint.
        unwanted = [f"{part}/*" for part in locations] + _not_needed(configurations_only)
        checkpoint = Checkpoint(
            _download(source, "checkpoint", ignore=unwanted), source, locations, configurations_only
        )
    else:
        raise InvalidRequest(
            f"checkpoint must be a preset ({', '.join(family.presets)}), a folder, or a hub id,"
            f" got {source!r}"
        )
    checkpoint.check_layout(family.layout, _what(family))
    yield checkpoint


def _what(family: Family) -> str:
    return f"{family.name} (layout of {family.upstream})"


def _not_needed(configurations_only: bool) -> list[str]:
    return list(NOT_NEEDED) if configurations_only else []


def _part_locations(
    family: Family, parts: Mapping[str, str], configurations_only: bool
) -> dict[str, PartLocation]:
    allowed = [part.name for part in family.parts]
    if unknown := sorted(parts.keys() - set(allowed)):
        rule = (
            f"one of {', '.join(allowed)}" if allowed else "left out, because its checkpoints have no parts"
        )
        raise InvalidRequest(f"part of family {family.name} must be {rule}, got {', '.join(unknown)}")
    unwanted = _not_needed(configurations_only)
    return {
        part: PartLocation(_part_folder(part, source, unwanted), source) for part, source in parts.items()
    }


def _part_folder(part: str, source: str, unwanted: list[str]) -> Path:
    """Return a part's folder: the folder of its name in the given location, or else the location itself."""
    if Path(source).is_dir():
        location = Path(source).resolve()
    elif (found := _HUB_FOLDER.match(source)) and not Path(source).exists():
        hub_id, folder = found[1], found[2].rstrip("/")
        location = _download(hub_id, f"part {part}", allow=[f"{folder}/*"], ignore=unwanted) / folder
        if not location.is_dir():
            raise InvalidRequest(f"part {part} must be a folder in hub repository {hub_id}, got {folder}")
    elif _HUB_ID.match(source) and not Path(source).exists():
        location = _download(source, f"part {part}", allow=[f"{part}/*"], ignore=unwanted)
        if not (location / part).is_dir():
            location = _download(source, f"part {part}", ignore=["*/*", *unwanted])
    else:
        raise InvalidRequest(f"part {part} must be a folder or a hub id, got {source!r}")
    return location / part if (location / part).is_dir() else location


def _download(
    hub_id: str, where: str, *, allow: list[str] | None = None, ignore: list[str] | None = None
) -> Path:
    """Download a hub repository, or files of it that match patterns; return its folder in the cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=allow, ignore_patterns=ignore or None))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0]
        kinds = "an existing folder" if where.startswith("part") else "a preset, an existing folder"
        raise InvalidRequest(
            f"{where} must be {kinds}, or a reachable hub id, got {hub_id!r} ({reason})"
        ) from None
