"""Files of a hub repository that an export reads, found before they are there.

The components are planned and described from the configurations alone. A checkpoint records every file that
is read from it or looked for, so the record names the weight files that each component needs.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.hub import HubFolder, is_weights
from slipway_export.checkpoint.layouts.weight_files import STEMS
from slipway_export.spec import Family, Loading, Plan, Precision
from slipway_serving.protocol.errors import InvalidRequest


@dataclass(frozen=True)
class Wanted:
    """Components that an export makes graphs of.

    Args:
        plan: Function that plans a checkpoint from its configurations; it refuses a wrong one.
        components: Names of the components; all of the plan if empty.
    """

    plan: Callable[[Checkpoint], Plan]
    components: Sequence[str] = ()


@dataclass
class Needs:
    """Weight files that are needed from each hub folder.

    Attributes:
        files: Folder and needed paths, by the folder's identity.
    """

    files: dict[int, tuple[HubFolder, set[str]]] = field(default_factory=dict)

    def add(self, folder: HubFolder, path: str) -> None:
        """Add a file."""
        self.files.setdefault(id(folder), (folder, set()))[1].add(path)


def needed_files(
    family: Family, checkpoint: Checkpoint, wanted: Wanted
) -> list[tuple[HubFolder, Collection[str]]]:
    """Return the weight files that the components of an export need from the hub.

    Args:
        family: Family of the checkpoint.
        checkpoint: Checkpoint with its configurations; files that are only in the hub may be missing.
        wanted: Components of the export.

    Raises:
        InvalidRequest: The checkpoint is not of the family, or the hub lacks the weights of a component.
    """
    plan = wanted.plan(checkpoint)
    chosen = [c for c in plan.components if not wanted.components or c.name in wanted.components]
    named = {component.name for component in chosen}
    withheld = _withheld(family, checkpoint)
    # Files such as a VAE in a .pth have no configuration, so their components are not planned without them.
    whole = bool(withheld) and not (wanted.components and named >= set(wanted.components))
    needs = Needs()
    for component in chosen:
        with checkpoint.recording() as record:
            try:
                component.load(Precision.FP32, Loading.META)
            except InvalidRequest:
                if not withheld:
                    raise
                whole = True
        for name in record.content | record.looked_for:
            _add(needs, checkpoint, posixpath.normpath(name), withheld)
        for name in record.looked_for | record.content:
            _add_variants(needs, checkpoint, posixpath.normpath(name))
    if whole:
        for name in withheld:
            _add(needs, checkpoint, name, withheld)
    return list(needs.files.values())


def _withheld(family: Family, checkpoint: Checkpoint) -> list[str]:
    """Return the weight files that the family's layout names and that only the hub has."""
    return [
        entry
        for entry in family.layout
        if isinstance(entry, str) and is_weights(entry) and _remote(checkpoint, entry) is not None
    ]


def _remote(checkpoint: Checkpoint, name: str) -> tuple[HubFolder, str] | None:
    """Return the hub folder and path of a file, or None if the hub does not have it."""
    folder, path = checkpoint.in_hub(name)
    return (folder, path) if folder is not None and path in folder.sizes else None


def _add(needs: Needs, checkpoint: Checkpoint, name: str, withheld: Sequence[str]) -> None:
    """Add a file that a component looked for, and what is in the layout if it may read the whole folder."""
    if name == ".":
        for entry in withheld:
            _add(needs, checkpoint, entry, ())
    elif (found := _remote(checkpoint, name)) is not None and is_weights(name):
        folder, path = found
        place = posixpath.dirname(path)
        beside = (each for each in folder.sizes if posixpath.dirname(each) == place)
        # The same weights as a pickle are not needed.
        if path.endswith(".bin") and any(each.endswith(".safetensors") for each in beside):
            return
        needs.add(folder, path)


def _add_variants(needs: Needs, checkpoint: Checkpoint, name: str) -> None:
    """Add the weights of a folder in which a component looked for weights that have another name there."""
    if posixpath.basename(name) not in STEMS:
        return
    folder, path = checkpoint.in_hub(name)
    if folder is None:
        return
    if folder.repository.commit is None:
        _check_cached(checkpoint, name, folder)
        return
    place = posixpath.dirname(path)
    beside = {each for each in folder.sizes if posixpath.dirname(each) == place and is_weights(each)}
    if beside & needs.files.get(id(folder), (folder, set()))[1]:
        return
    tensors = {each for each in beside if each.endswith(".safetensors")}
    chosen = tensors or {each for each in beside if each.endswith(".bin")}
    if not chosen:
        raise InvalidRequest(
            f"{checkpoint.where(name)}: {posixpath.dirname(name) or 'the repository'} must contain"
            f" {' or '.join(STEMS)}, or shards of one, got {', '.join(sorted(beside)) or 'no weights'}"
        )
    for each in chosen:
        needs.add(folder, each)


def _check_cached(checkpoint: Checkpoint, name: str, folder: HubFolder) -> None:
    """Refuse a folder without weights in the cache, if the hub was not asked for them."""
    place = checkpoint.file(posixpath.dirname(name))
    if not any(is_weights(each.name) for each in place.glob("*")):
        raise InvalidRequest(
            f"{checkpoint.where(name)}: {posixpath.dirname(name)} must have its weights in the hub's cache,"
            f" got none in {place}; {folder.repository.reason}; try without HF_HUB_OFFLINE, or `hf download"
            f" {folder.repository.hub_id}` on a machine with a connection"
        )
