"""Reader for public checkpoints that checks them before any weight is used.

A checkpoint is a folder in the layout of diffusers or transformers: each part has a `config.json` and
safetensors files, sharded or not. It comes from a preset, a local folder, or a hub id; each of its parts may
come from another folder or hub id. Before loading, this module checks that every file of a part exists and
that every key and shape matches the network, because the libraries' loaders fill missing keys with random
numbers and only warn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slipway_export.checkpoint.config_entries import ConfigEntries, LastRead, refusing_malformed
from slipway_export.checkpoint.keys import cast, check_keys, dtypes_of, torch_dtype
from slipway_export.checkpoint.layouts.weight_files import (
    LAYOUT_FILE,
    STEMS,
    WeightFiles,
    commit_of,
    find_weights,
    variants_in,
)
from slipway_export.checkpoint.lora.adapters import FOLDER, Additions, adapters_of
from slipway_export.checkpoint.provenance import Digests, ReadLog, ReadRecord
from slipway_export.spec.formats import Precision
from slipway_export.spec.layout import Part
from slipway_export.spec.loading import Loading
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import torch

    from slipway_export.checkpoint.hub import HubFolder
    from slipway_export.checkpoint.stored_weights import StoredTensor

Module = TypeVar("Module", bound="torch.nn.Module")

NOT_NEEDED = ("*.safetensors", "*.bin")
"""Patterns of the files of a checkpoint that are not needed where its configuration files are enough."""


@dataclass(frozen=True)
class PartLocation:
    """Location of a checkpoint part that is stored outside the checkpoint's folder.

    Args:
        path: Folder with the part's files.
        source: Folder or hub id that the user named.
        hub: The part's folder in a hub repository; None for other sources.
    """

    path: Path
    source: str
    hub: HubFolder | None = None

    @property
    def commit(self) -> str | None:
        """Commit of a hub snapshot; None for any other folder."""
        return commit_of(self.path)


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint folder, with the locations of parts that are stored elsewhere.

    The checkpoint records every file that is read through it (:mod:`slipway_export.checkpoint.provenance`).

    Args:
        folder: Folder of the checkpoint.
        source: Preset, folder or hub id that the user named.
        part_locations: Locations of the parts that are stored elsewhere, by name of the part.
        configurations_only: True if networks are described from their configurations alone, so weight files
            may be missing.
        additions: LoRAs and schedule that the export adds to it.
        hub: The checkpoint's folder in a hub repository, whose files may not be here yet; None for other
            sources.
        supplied: Folder with the family's own copies of files that the checkpoint lacks.
        variant_file: Variant of the weight files that is read of each part that has it; empty for none.
    """

    folder: Path
    source: str
    part_locations: Mapping[str, PartLocation] = field(default_factory=dict)
    configurations_only: bool = False
    additions: Additions = field(default_factory=Additions)
    hub: HubFolder | None = None
    supplied: Path | None = None
    variant_file: str = ""
    _reads: ReadLog = field(default_factory=ReadLog, repr=False, compare=False)
    _last: LastRead = field(default_factory=LastRead, repr=False, compare=False)

    @property
    def path(self) -> Path:
        """Folder of the checkpoint, recorded as read in whole, since the caller may read any file in it."""
        self._reads.note("")
        return self.folder

    @property
    def commit(self) -> str | None:
        """Commit of a hub snapshot; None for any other folder."""
        return commit_of(self.folder)

    def file(self, file: str) -> Path:
        """Return the location of a file or folder of the checkpoint, and record it as read."""
        self._reads.note(file)
        return self._locate(file)

    def recording(self) -> AbstractContextManager[ReadRecord]:
        """Record the files that are read from this checkpoint (by path in it) and from those beside it."""
        return self._reads.recording(self._locate)

    def beside(self, folder: Path, source: str) -> Checkpoint:
        """Return another checkpoint that this one names, whose files are recorded with those of this one.

        Args:
            folder: Folder of the other checkpoint.
            source: Name that messages use for it.
        """
        return Checkpoint(
            folder, source, configurations_only=self.configurations_only, _reads=self._reads.beneath(folder)
        )

    def matches(self, read: Mapping[str, str], digests: Digests) -> bool:
        """Return whether every recorded file still has its hash from :meth:`ReadRecord.digests`."""
        return digests.match(read, self._locate)

    def _locate(self, file: str) -> Path:
        part, _, rest = file.partition("/")
        if part == FOLDER and self.additions.folder is not None:
            return self.additions.folder / rest
        location = self.part_locations.get(part)
        if location is not None:
            return location.path / rest
        path = self.folder / file
        if self.supplied is not None and not path.exists() and (self.supplied / file).is_file():
            return self.supplied / file
        return path

    def in_hub(self, file: str) -> tuple[HubFolder | None, str]:
        """Return the hub folder that a file of the checkpoint comes from, and the file's path in it."""
        part, _, rest = file.partition("/")
        location = self.part_locations.get(part)
        hub, path = (self.hub, file) if location is None else (location.hub, rest)
        return hub, path.removeprefix("./") if path != "." else ""

    def may_have(self, file: str) -> bool:
        """Return whether the checkpoint has a file or folder, or the hub does."""
        hub, path = self.in_hub(file)
        return self.has(file) or (hub is not None and hub.has(path))

    def where(self, file: str) -> str:
        """Return the name that messages use for the source of a checkpoint file."""
        part = file.partition("/")[0]
        location = self.part_locations.get(part)
        if location is not None:
            return f"part {part} from {location.source}"
        return f"checkpoint {self.source}" if self.source else "parts without a checkpoint"

    def config(self, file: str) -> dict[str, Any]:
        """Read a JSON file of the checkpoint.

        Raises:
            InvalidRequest: The file is missing or is not a JSON object.
        """
        path = self.file(file)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidRequest(f"{self.where(file)}: file {file} is missing") from None
        except (ValueError, OSError, RecursionError) as error:
            raise InvalidRequest(f"{self.where(file)}: {file} must be JSON, got {error}") from None
        if not isinstance(content, dict):
            raise InvalidRequest(
                f"{self.where(file)}: {file} must be a JSON object, got {type(content).__name__}"
            )
        where = f"{self.where(file)}: {file}"
        self._last.text = where
        return ConfigEntries(content, where, self._last)

    def describing(self, family: str) -> AbstractContextManager[None]:
        """Raise InvalidRequest if the work in the block fails because of the configuration files' content."""
        what = f"checkpoint {self.source}: configuration files must describe networks of family {family}"
        return refusing_malformed(what, self._last)

    def has(self, file: str) -> bool:
        """Return whether the checkpoint has a file or folder with this path."""
        self._reads.note(file, content=False)
        return self._locate(file).exists()

    def check_layout(self, layout: Sequence[str | Part], what: str, fix: str = "") -> None:
        """Check that every file and part of a layout exists.

        Args:
            layout: Required content of the checkpoint.
            what: Name of the family and of the public checkpoint with this layout, for messages.
            fix: Advice for a checkpoint that lacks a file, if there is any.

        Raises:
            InvalidRequest: A file or part is missing. The message names all of them and their locations.
        """
        missing: dict[str, list[str]] = {}
        for entry in layout:
            for path in self._lacking(entry):
                missing.setdefault(self.where(path), []).append(path)
        if missing:
            problems = (f"{where}: {', '.join(paths)} must exist" for where, paths in missing.items())
            text = f"{' | '.join(problems)} for {what}"
            if self.hub is not None and f"checkpoint {self.source}" in missing:
                text += f"; the hub's repository has {self.hub.listed()}"
            raise InvalidRequest(f"{text}; {fix}" if fix else text)

    def _lacking(self, entry: str | Part) -> list[str]:
        if isinstance(entry, str):
            return [] if self.may_have(entry) or self._is_dispensable(entry) else [entry]
        if entry.optional and not self.may_have(entry.name):
            return []
        required = [f"{entry.name}/{file}" for file in entry.files] or [entry.name]
        return [path for path in required if not self.may_have(path)]

    def _is_dispensable(self, file: str) -> bool:
        """Return whether a plan from configuration files does not need this file."""
        return self.configurations_only and any(fnmatchcase(file, pattern) for pattern in NOT_NEEDED)

    def load(
        self,
        part: str,
        network: type[Module],
        precision: Precision,
        loading: Loading,
        build: Callable[[], Module] | None = None,
        prefix: str = "",
        **options: Any,
    ) -> Module:
        """Load a part's network with its checked weights, in eval mode and without gradients.

        Args:
            part: Folder of the part, e.g. ``transformer_2``.
            network: Class of diffusers or transformers with ``from_pretrained``.
            precision: Precision of the weights; modules that the network keeps in float32 stay in float32.
            loading: Extent to which weights are read. None is ever read where configurations suffice.
            build: Function that builds the network without weights, whose keys and shapes are checked.
            prefix: Prefix that keys in the files may have, that the network's keys lack, and that the library
                handles itself, e.g. ``text_model.`` in a CLIP that an earlier version wrote.
            **options: Options passed to ``from_pretrained``.

        Raises:
            InvalidRequest: A file is missing or truncated, keys or shapes differ, or weights are quantized.
        """
        import torch

        from slipway_export.checkpoint.lora.merge import MergedTensor
        from slipway_export.checkpoint.stored_weights import fill, placeholder_folder, record_locations

        file = f"{part}/config.json"
        what = f"{self.where(file)}: {file} must describe a {network.__name__}"
        with refusing_malformed(what, self._last), torch.device("meta"):
            skeleton = (
                build() if build else network.from_config(self.config(file))  # type: ignore[attr-defined]
            )
        dtype = torch_dtype(precision)
        stored = self._checked(part, skeleton, prefix)
        if loading is Loading.META:
            record_locations(skeleton, stored)
            cast(skeleton, dtypes_of(network, dtype))
            return skeleton.eval().requires_grad_(False)
        folder: AbstractContextManager[Path] = nullcontext(self.file(part))
        # The libraries read no other files themselves, and merge no LoRAs tensor by tensor.
        files = self.weight_files(part)
        has_loras = any(isinstance(tensor, MergedTensor) for tensor in stored.values())
        ours = has_loras or files is None or not files.is_read_by_library
        if ours or loading is Loading.ON_DISK or self.configurations_only:
            folder = placeholder_folder(
                self.file(part), files.library_names if files else STEMS, stored, dtypes_of(network, dtype)
            )
        with folder as path:
            module: Module = network.from_pretrained(  # type: ignore[attr-defined]
                path, torch_dtype=dtype, local_files_only=True, **options
            )
        if ours and loading is Loading.READ and not self.configurations_only:
            fill(module, stored)
        record_locations(module, stored)
        return module.eval().requires_grad_(False)

    @contextmanager
    def readable(self, part: str, build: Callable[[], torch.nn.Module]) -> Iterator[Path]:
        """Open a part's folder for a loader that belongs to the family.

        If configurations are enough and the part has no weight files, the folder contains a weight file with
        the network's keys and no content.

        Args:
            part: Folder of the part, ``.`` for the checkpoint's folder.
            build: Function that builds the network without weights.

        Raises:
            InvalidRequest: A weight file is missing, truncated, or not safetensors.
        """
        import torch

        from slipway_export.checkpoint.stored_weights import placeholder_folder

        if not self._lacks_weights(part):
            self.weight_shapes(part)
            yield self.file(part)
            return
        with torch.device("meta"):
            stored = self._checked(part, build())
        with placeholder_folder(self.file(part), STEMS, stored, lambda key: stored[key].dtype) as folder:
            yield folder

    def _lacks_weights(self, part: str) -> bool:
        """Return whether a part lacks weights and its configuration is used in their place."""
        if not self.configurations_only:
            return False
        if self.is_presented(part):
            return False
        if self.weight_files(part) is None:
            return True
        # Each shard is looked for, since the record of these is what a hub is asked for.
        missing = [file for file in self._weight_files(part) if not self.has(file)]
        return bool(missing)

    def _checked(self, part: str, skeleton: torch.nn.Module, prefix: str = "") -> dict[str, StoredTensor]:
        """Check a part's tensors against its network and return their locations; see :meth:`load`."""
        from slipway_export.checkpoint.quantized_weights import check_config, check_stored
        from slipway_export.checkpoint.stored_weights import tensors_without_files

        if self.has(config := f"{part}/config.json"):
            check_config(f"{self.where(part)}: {config}", self.config(config))
        if self._lacks_weights(part):
            return self._merged(part, tensors_without_files(skeleton), skeleton)
        where = f"{self.where(part)}{_inner(part)}"
        stored = {key.removeprefix(prefix): tensor for key, tensor in self.stored(part).items()}
        check_stored(where, stored, skeleton)
        check_keys(where, {key: tensor.shape for key, tensor in stored.items()}, skeleton)
        return self._merged(part, stored, skeleton)

    def _merged(
        self, part: str, stored: dict[str, StoredTensor], skeleton: torch.nn.Module
    ) -> dict[str, StoredTensor]:
        """Return a part's tensors with its LoRAs merged into them."""
        from slipway_export.checkpoint.lora.merge import merged

        adapters = adapters_of(self, part, self.additions.loras)
        return merged(stored, adapters, type(skeleton).__name__) if adapters else stored

    def weight_shapes(self, part: str) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of a part, read from the headers of its files.

        Raises:
            InvalidRequest: A file is missing, truncated, or not safetensors.
        """
        return {key: tensor.shape for key, tensor in self.stored(part).items()}

    def stored(self, part: str) -> dict[str, StoredTensor]:
        """Return the location of every tensor of a part, by key, read from the headers of its files.

        Raises:
            InvalidRequest: A file is missing, truncated, or not safetensors.
        """
        from slipway_export.checkpoint.layouts.part_files import tensors_of_part

        found: dict[str, StoredTensor] = {}
        for file in self._weight_files(part):
            found |= self.stored_in(file)
        if self.is_presented(part):
            return tensors_of_part(found, part, self.where(f"{part}/{LAYOUT_FILE}"))
        return found

    def stored_in(self, file: str) -> dict[str, StoredTensor]:
        """Return the location of every tensor of one file, by key, read from its header.

        The file may have any name; its suffix says whether it is one of torch or a GGUF file.

        Raises:
            InvalidRequest: The file is missing, truncated, or of another kind.
        """
        from slipway_export.checkpoint.layouts.tensor_files import tensors_of

        return tensors_of(self.file(file), self.where(file), file)

    def _weight_files(self, part: str) -> list[str]:
        """Return the paths of a part's weight files: the single one, or the shards that its index names."""
        if self.is_presented(part):
            return [f"{part}/{file}" for file in self.config(f"{part}/{LAYOUT_FILE}")["files"]]
        found = self.weight_files(part)
        if found is None:
            raise InvalidRequest(
                f"{self.where(part)}{_inner(part)} must contain"
                f" {' or '.join(STEMS)}, or the .index.json of one, got neither"
            )
        if not found.is_index:
            return [f"{part}/{found.entry}"]
        index = self.config(f"{part}/{found.entry}").get("weight_map", {})
        shards = set(index.values()) if isinstance(index, dict) else {index}
        if outside := [shard for shard in shards if not _is_file_name(shard)]:
            raise InvalidRequest(
                f"{self.where(part)}: {part}/{found.entry} must name files in its own folder, got"
                f" {', '.join(map(repr, outside[:3]))}"
            )
        return [f"{part}/{shard}" for shard in sorted(shards)]

    def is_presented(self, part: str) -> bool:
        """Return whether a part's folder presents files of another layout."""
        return self.has(f"{part}/{LAYOUT_FILE}")

    def variants(self, part: str) -> set[str]:
        """Return the words of the variants that a part's weights have."""
        return set(variants_in(self._names_in(part)))

    def weight_files(self, part: str) -> WeightFiles | None:
        """Return the names of a part's weight files in the layout of the libraries; None if it has none.

        They may be in the hub only, as long as a checkpoint is described from its configurations.
        """
        where = f"{self.where(part)}{_inner(part)}"
        has = lambda name: self.may_have(f"{part}/{name}")  # noqa: E731
        return find_weights(self._names_in(part), has, where, self.variant_file)

    def _names_in(self, part: str) -> set[str]:
        """Return the names of the files in a part's folder, here and in the hub."""
        folder = self._locate(part)
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        hub, path = self.in_hub(part)
        return names if hub is None else names | hub.names_in(path)


def _inner(part: str) -> str:
    """Return the place of a part within its checkpoint, for messages; nothing for the checkpoint's folder."""
    return "" if part == "." else f": {part}"


def _is_file_name(name: object) -> bool:
    """Return whether this is a plain file name, which cannot point outside its folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name)
