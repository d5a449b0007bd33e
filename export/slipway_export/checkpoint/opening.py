"""Opening of a checkpoint from a preset, a folder, a hub id, single files, or separate parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.checkpoint import Checkpoint, PartLocation
from slipway_export.checkpoint.hub import HubFolder, describe, download_needed, is_weights, look
from slipway_export.checkpoint.hub_needs import Wanted, needed_files
from slipway_export.checkpoint.layouts.chosen_files import check_variant
from slipway_export.checkpoint.layouts.hub_files import file_in_hub, original_in_hub, refuse_comfy
from slipway_export.checkpoint.layouts.presented import (
    PRESENTED_PREFIX,
    network_file_as_checkpoint,
    presented_part,
    readable_folder,
    write_configs,
)
from slipway_export.checkpoint.lora.adapters import Additions, lora_folder
from slipway_export.checkpoint.lora.requests import NO_ADDITIONS, RequestedAdditions, find_loras
from slipway_export.checkpoint.named_files import CHECKPOINT_PREFIX, file_as_checkpoint, linked, other_names
from slipway_export.progress import Report
from slipway_export.spec import Family, Part, Plan
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
    wanted: Wanted | None = None,
    requested: RequestedAdditions = NO_ADDITIONS,
    variant_file: str = "",
    report: Report | None = None,
) -> Iterator[Checkpoint]:
    """Find a checkpoint and check its layout, with what the user adds to it.

    A hub id is refused by its file list and its configurations before any of its weights are downloaded.
    Other layouts are presented in a temporary folder, in the family's layout.

    Args:
        family: Family whose layout the checkpoint must have.
        source: Name of a preset (which is written into a temporary folder), a folder, or a hub id. Empty if
            only files or parts are given; with parts alone, the plan has the components made from these.
        parts: Folder, file or hub id of each part that does not come from the checkpoint, by name; a folder
            or file within the hub repository may follow a hub id.
        files: Checkpoint files by role of the family, instead of a source. Other files of the layout may be
            missing; the plan then covers the files that exist.
        configurations_only: True if the checkpoint's configurations suffice. Weight files may then be
            missing, those of a hub id are not downloaded, and those of a preset have no content.
        wanted: Components whose weights are downloaded from a hub; all of the family's plan when None.
        requested: LoRAs to merge into its weights, and defaults of the served model's schedule.
        variant_file: Variant of the weight files, such as ``fp16``, that is read of each part that has it.
        report: Callback that receives a line for each download, and for each that an export of a plan makes.

    Raises:
        InvalidRequest: The source is none of these, a file is missing, the family has no such part, or the
            layout is not complete. Or an addition is invalid, or does not fit the family.
        HubDiskFull: The disk is too small for the files from the hub.
    """
    if requested.schedule and not family.takes_schedule:
        raise InvalidRequest(f"steps-list and flow-shift must be left out for {family.name}, got one of them")
    parts = parts or {}
    _check_part_names(family, parts)
    with ExitStack() as opened:
        if files:
            folder, source = opened.enter_context(linked(family, files))
            checkpoint = Checkpoint(folder, source, configurations_only=configurations_only)
        else:
            checkpoint = _found(family, source, parts, opened, configurations_only, report)
            # With parts alone, the plan has the components made from these.
            layout = family.layout if source else tuple(p for p in family.parts if p.name in parts)
            if wanted is not None and wanted.components and _is_cached(checkpoint):
                # A cache without its hub may lack the weights of the other components.
                layout = tuple(entry for entry in layout if not _is_weight_file(entry))
            checkpoint.check_layout(layout, _what(family), other_names(family, checkpoint.folder))
        checkpoint = replace(checkpoint, variant_file=variant_file)
        check_variant(checkpoint, [part.name for part in family.parts])
        able = [part.name for part in family.parts if checkpoint.may_have(part.name)]
        # LoRAs come before the weights, which are larger and useless with a LoRA that does not fit.
        headers = (
            opened.enter_context(TemporaryFolder("slipway-lora-headers-"))
            if configurations_only and requested.loras
            else None
        )
        loras = find_loras(family, able, requested.loras, headers)
        added = Additions(opened.enter_context(lora_folder(loras)), loras, requested.schedule)
        checkpoint = replace(checkpoint, additions=added)
        yield _downloaded(family, checkpoint, wanted or Wanted(_planned(family)), report)


def _found(
    family: Family,
    source: str,
    parts: Mapping[str, str],
    opened: ExitStack,
    configurations_only: bool,
    report: Report | None,
) -> Checkpoint:
    """Find a checkpoint and its parts, before any weights of hub repositories are downloaded."""
    if source in family.presets and not parts:
        folder = _preset_folder(family, source, opened, configurations_only)
        return Checkpoint(folder, source, configurations_only=configurations_only)
    presented = opened.enter_context(TemporaryFolder(PRESENTED_PREFIX))
    hub = None
    if parts and not source:
        folder = opened.enter_context(TemporaryFolder(CHECKPOINT_PREFIX))
    elif source in family.presets:
        folder = _preset_folder(family, source, opened, configurations_only)
    elif Path(source).is_dir():
        folder = readable_folder(Path(source).resolve(), presented)
    elif _HUB_ID.match(source) and not Path(source).exists():
        # Parts that come from elsewhere are not downloaded with the checkpoint.
        hub = HubFolder(look(source, "checkpoint"), unwanted=tuple(parts))
        folder = hub.path
        refuse_comfy(hub)
        if (original := original_in_hub(hub, configurations_only, report)) is not None:
            folder, hub = readable_folder(original, presented), None
    elif Path(source).is_file():
        named = None if family.files else network_file_as_checkpoint(Path(source))
        raise named or file_as_checkpoint(family, Path(source))
    else:
        raise InvalidRequest(
            f"checkpoint must be a preset ({', '.join(family.presets)}), a folder, or a hub id,"
            f" got {source!r}"
        )
    places = {
        part: _part_location(part, place, presented, configurations_only) for part, place in parts.items()
    }
    if hub is not None:
        hub.part_configurations(part for part in places if (presented / part).is_dir())
    write_configs(presented, places, folder)
    checkpoint = Checkpoint(folder, source, places, configurations_only, hub=hub)
    if supplied := _supplied(family, checkpoint):
        own = opened.enter_context(TemporaryFolder(CHECKPOINT_PREFIX))
        for file, content in supplied.items():
            (own / file).parent.mkdir(parents=True, exist_ok=True)
            (own / file).write_bytes(content)
        checkpoint = replace(checkpoint, supplied=own)
        if report is not None:
            report(f"{', '.join(supplied)}: Slipway's own, since checkpoint {source} has none")
    return checkpoint


def _is_cached(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is read from the hub's cache because the hub was not asked."""
    return checkpoint.hub is not None and checkpoint.hub.repository.cached is not None


def _preset_folder(family: Family, name: str, opened: ExitStack, configurations_only: bool) -> Path:
    """Write a preset into a temporary folder."""
    preset, folder = family.presets[name], opened.enter_context(TemporaryFolder(CHECKPOINT_PREFIX))
    if configurations_only and preset.write_empty is not None:
        preset.write_empty(folder)
    else:
        preset.write(folder, 0)
    return folder


def _downloaded(family: Family, checkpoint: Checkpoint, wanted: Wanted, report: Report | None) -> Checkpoint:
    """Return a checkpoint with its files of hub repositories downloaded, as far as they are needed."""
    locations = dict(checkpoint.part_locations)
    if checkpoint.hub is None and not any(place.hub for place in locations.values()):
        return checkpoint
    named = [entry for entry in family.layout if isinstance(entry, str)]
    named += [f"{part.name}/{file}" for part in family.parts for file in part.files]
    for name, place in locations.items():
        if place.hub is not None:
            files = [path.removeprefix(f"{name}/") for path in named if path.startswith(f"{name}/")]
            locations[name] = replace(place, path=place.hub.configurations(files))
    folder = checkpoint.folder if checkpoint.hub is None else checkpoint.hub.configurations(named)
    described = replace(checkpoint, folder=folder, part_locations=locations, configurations_only=True)
    if checkpoint.configurations_only:
        folders = [checkpoint.hub, *(place.hub for place in locations.values())]
        # A cache without its hub does not tell which files the hub has.
        if report is not None and all(hub is None or hub.repository.commit for hub in folders):
            for hub, paths in needed_files(family, described, wanted):
                report(describe(hub, paths))
        return described
    download_needed(needed_files(family, described, wanted), report)
    return replace(described, configurations_only=False)


def _planned(family: Family) -> Callable[[Checkpoint], Plan]:
    """Return a function that plans a checkpoint of a family with its usual axes."""

    def plan(checkpoint: Checkpoint) -> Plan:
        with checkpoint.describing(family.name):
            return family.plan(checkpoint, axes_of(family, checkpoint, {}))

    return plan


def _supplied(family: Family, checkpoint: Checkpoint) -> dict[str, bytes]:
    """Return the family's own copies of files, if the checkpoint has none of them."""
    if any(checkpoint.may_have(PurePosixPath(file).parts[0]) for file in family.supplied):
        return {}
    return {file: content() for file, content in family.supplied.items()}


def _is_weight_file(entry: str | Part) -> bool:
    return isinstance(entry, str) and is_weights(entry)


def _what(family: Family) -> str:
    return f"{family.name} (layout of {family.upstream})"


def _check_part_names(family: Family, parts: Mapping[str, str]) -> None:
    allowed = [part.name for part in family.parts]
    if unknown := sorted(parts.keys() - set(allowed)):
        rule = (
            f"one of {', '.join(allowed)}" if allowed else "left out, because its checkpoints have no parts"
        )
        raise InvalidRequest(f"part of family {family.name} must be {rule}, got {', '.join(unknown)}")


def _part_location(part: str, source: str, presented: Path, configurations_only: bool) -> PartLocation:
    """Return a part's place: the folder of its name in the given location, or else the location itself."""
    download = None if configurations_only else file_in_hub
    if (of_file := presented_part(part, source, presented, download)) is not None:
        return PartLocation(of_file, source)
    if Path(source).is_dir():
        location = Path(source).resolve()
        return PartLocation(location / part if (location / part).is_dir() else location, source)
    inner = _HUB_FOLDER.match(source)
    if Path(source).exists() or not (inner or _HUB_ID.match(source)):
        raise InvalidRequest(f"part {part} must be a folder or a hub id, got {source!r}")
    hub_id, folder = (inner[1], inner[2].rstrip("/")) if inner else (source, "")
    repository = look(hub_id, f"part {part}")
    whole = HubFolder(repository)
    nested = f"{folder}/{part}" if folder else part
    prefix = nested if whole.has(nested) else folder
    if not whole.has(prefix):
        raise InvalidRequest(f"part {part} must be a folder in hub repository {hub_id}, got {folder}")
    hub = HubFolder(repository, f"{prefix}/" if prefix else "")
    return PartLocation(hub.path, source, hub)
