"""LoRAs of a checkpoint's parts, as files of a folder with the layout of a checkpoint.

An export puts its LoRAs into a folder, ``slipway/lora/PART/``: links to the files, and ``adapters.json`` with
their order and scales. They are thereby files of the checkpoint like any other: they are recorded as read by
the graphs of that part alone, and placed with the network that PyTorch serves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slipway_export.checkpoint.lora.keys import entry_of, kinds_refused
from slipway_export.spec.schedule_defaults import ScheduleDefaults
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.system.temporary_folders import TemporaryFolder

if TYPE_CHECKING:
    from slipway_export.checkpoint.stored_weights import StoredTensor

FOLDER = "slipway"
"""Folder of a checkpoint with what an export adds to it."""
_LIST = "adapters.json"
_CONFIG = ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora")


@dataclass(frozen=True)
class Lora:
    """LoRA file that an export merges into a part.

    Args:
        part: Name of the part.
        component: Name of the component that the user gave it for.
        source: File or hub id that the user named.
        path: Location of the file.
        scale: Factor of its changes.
        only: Part whose keys are merged, if the file has keys of several parts; "" for all keys.
        config: Configuration of PEFT beside it, as far as it concerns the scale.
        commit: Commit of a hub snapshot; None for any other file.
    """

    part: str
    component: str
    source: str
    path: Path
    scale: float = 1.0
    only: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    commit: str | None = None


@dataclass(frozen=True)
class Additions:
    """What an export adds to a checkpoint.

    Args:
        folder: Folder in the place of the checkpoint's folder ``slipway``, with the LoRAs; None without them.
        loras: LoRAs that are merged into the weights.
        schedule: Defaults of the served model's schedule.
    """

    folder: Path | None = None
    loras: tuple[Lora, ...] = ()
    schedule: ScheduleDefaults = field(default_factory=ScheduleDefaults)


class Files(Protocol):
    """Files of a checkpoint."""

    def has(self, file: str) -> bool:
        """Return whether there is a file of this path."""

    def config(self, file: str) -> dict[str, Any]:
        """Return the content of a JSON file."""

    def stored_in(self, file: str) -> dict[str, StoredTensor]:
        """Return the location of every tensor of a safetensors file, by key."""


@dataclass(frozen=True)
class Adapter:
    """LoRA of a part, as the checkpoint has it.

    Args:
        files: Files of the checkpoint.
        file: Path of the file in the checkpoint.
        where: Name of the LoRA in messages.
        scale: Factor of its changes.
        only: Part as for :class:`Lora`.
        config: Configuration as for :class:`Lora`.
    """

    files: Files
    file: str
    where: str
    scale: float
    only: str
    config: Mapping[str, Any]

    def tensors(self) -> dict[str, StoredTensor]:
        """Return the stored tensors of the file that concern the part."""
        found = self.files.stored_in(self.file)
        return {key: tensor for key, tensor in found.items() if not self.only or self._is_own(key)}

    def check_kind(self, tensors: Mapping[str, StoredTensor]) -> None:
        """Refuse methods other than LoRA, by name."""
        kinds = kinds_refused(tensors) or (["DoRA"] if self.config.get("use_dora") else [])
        if kinds:
            raise InvalidRequest(
                f"{self.where} must be a LoRA, got {', '.join(kinds)}, which is not supported; try a file"
                " of its weights already merged, as --part"
            )

    def _is_own(self, key: str) -> bool:
        entry = entry_of(key)
        return entry is None or entry.part in ("", self.only)


@contextmanager
def lora_folder(loras: Sequence[Lora]) -> Iterator[Path | None]:
    """Open a folder in the place of a checkpoint's folder :data:`FOLDER`; None if there are no LoRAs."""
    if not loras:
        yield None
        return
    with TemporaryFolder("slipway-lora-") as folder:
        for part in dict.fromkeys(lora.part for lora in loras):
            inside = folder / "lora" / part
            inside.mkdir(parents=True)
            listed = []
            for number, lora in enumerate(each for each in loras if each.part == part):
                # The name contains the scale, since names of weights tell states of videos apart.
                name = f"{number}_scale_{lora.scale:g}.safetensors"
                (inside / name).symlink_to(lora.path.resolve())
                listed.append(
                    {
                        "file": name,
                        "scale": lora.scale,
                        "only": lora.only,
                        "config": {key: lora.config[key] for key in _CONFIG if key in lora.config},
                    }
                )
            text = json.dumps({"adapters": listed}, indent=2, sort_keys=True) + "\n"
            (inside / _LIST).write_text(text, encoding="utf-8")
        yield folder


def adapters_of(files: Files, part: str, loras: Sequence[Lora]) -> list[Adapter]:
    """Return the LoRAs of a part, in their order.

    Args:
        files: Files of the checkpoint.
        part: Name of the part.
        loras: LoRAs of the export, whose sources messages name; none where only the files are known.

    Raises:
        InvalidRequest: The list is not as an export writes it.
    """
    folder = f"{FOLDER}/lora/{part}"
    if not files.has(f"{folder}/{_LIST}"):
        return []
    names = [lora.source for lora in loras if lora.part == part]
    found = []
    for number, entry in enumerate(files.config(f"{folder}/{_LIST}")["adapters"]):
        source = names[number] if number < len(names) else entry["file"]
        found.append(
            Adapter(
                files,
                f"{folder}/{entry['file']}",
                f"lora {source} for {part}",
                float(entry["scale"]),
                str(entry["only"]),
                dict(entry["config"]),
            )
        )
    return found
