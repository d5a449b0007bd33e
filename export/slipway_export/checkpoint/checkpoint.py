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
from slipway_export.checkpoint.provenance import Digests, ReadLog, ReadRecord
from slipway_export.spec.formats import Precision
from slipway_export.spec.layout import Part
from slipway_export.spec.loading import Loading
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import torch

    from slipway_export.checkpoint.stored_weights import StoredTensor

Module = TypeVar("Module", bound="torch.nn.Module")

_WEIGHT_STEMS = ("diffusion_pytorch_model.safetensors", "model.safetensors")
NOT_NEEDED = ("*.safetensors", "*.bin")
"""Patterns of the files of a checkpoint that are not needed where its configuration files are enough."""


@dataclass(frozen=True)
class PartLocation:
    """Location of a checkpoint part that is stored outside the checkpoint's folder.

    Args:
        path: Folder with the part's files.
        source: Folder or hub id that the user named.
    """

    path: Path
    source: str

    @property
    def commit(self) -> str | None:
        """Commit of a hub snapshot; None for any other folder."""
        return _commit(self.path)


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
    """

    folder: Path
    source: str
    part_locations: Mapping[str, PartLocation] = field(default_factory=dict)
    configurations_only: bool = False
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
        return _commit(self.folder)

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
        location = self.part_locations.get(part)
        return self.folder / file if location is None else location.path / rest

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

    def check_layout(self, layout: Sequence[str | Part], what: str) -> None:
        """Check that every file and part of a layout exists.

        Args:
            layout: Required content of the checkpoint.
            what: Name of the family and of the public checkpoint with this layout, for messages.

        Raises:
            InvalidRequest: A file or part is missing. The message names all of them and their locations.
        """
        missing: dict[str, list[str]] = {}
        for entry in layout:
            for path in self._lacking(entry):
                missing.setdefault(self.where(path), []).append(path)
        if missing:
            problems = (f"{where}: {', '.join(paths)} must exist" for where, paths in missing.items())
            raise InvalidRequest(f"{' | '.join(problems)} for {what}")

    def _lacking(self, entry: str | Part) -> list[str]:
        if isinstance(entry, str):
            return [] if self.has(entry) or self._is_dispensable(entry) else [entry]
        if entry.optional and not self.has(entry.name):
            return []
        required = [f"{entry.name}/{file}" for file in entry.files] or [entry.name]
        return [path for path in required if not self.has(path)]

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

        from slipway_export.checkpoint.stored_weights import placeholder_folder, record_locations

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
        if loading is Loading.ON_DISK or self.configurations_only:
            folder = placeholder_folder(
                self.file(part), self._placeholder_names(part), stored, dtypes_of(network, dtype)
            )
        with folder as path:
            module: Module = network.from_pretrained(  # type: ignore[attr-defined]
                path, torch_dtype=dtype, local_files_only=True, **options
            )
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
        with placeholder_folder(
            self.file(part), _WEIGHT_STEMS, stored, lambda key: stored[key].dtype
        ) as folder:
            yield folder

    def _lacks_weights(self, part: str) -> bool:
        """Return whether a part lacks weights and its configuration is used in their place."""
        if not self.configurations_only:
            return False
        return self._stem_of(part) is None or not all(map(self.has, self._weight_files(part)))

    def _checked(self, part: str, skeleton: torch.nn.Module, prefix: str = "") -> dict[str, StoredTensor]:
        """Check a part's tensors against its network and return their locations; see :meth:`load`."""
        from slipway_export.checkpoint.quantized_weights import check_config, check_stored
        from slipway_export.checkpoint.stored_weights import tensors_without_files

        if self.has(config := f"{part}/config.json"):
            check_config(f"{self.where(part)}: {config}", self.config(config))
        if self._lacks_weights(part):
            return tensors_without_files(skeleton)
        where = f"{self.where(part)}: {part}"
        stored = {key.removeprefix(prefix): tensor for key, tensor in self.stored(part).items()}
        check_stored(where, stored, skeleton)
        check_keys(where, {key: tensor.shape for key, tensor in stored.items()}, skeleton)
        return stored

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
        found: dict[str, StoredTensor] = {}
        for file in self._weight_files(part):
            found |= self.stored_in(file)
        return found

    def stored_in(self, file: str) -> dict[str, StoredTensor]:
        """Return the location of every tensor of one safetensors file, by key, read from its header.

        The file may have any name.

        Raises:
            InvalidRequest: The file is missing, truncated, or not safetensors.
        """
        from safetensors import SafetensorError, safe_open

        from slipway_export.checkpoint.stored_weights import DTYPES, StoredTensor

        path = self.file(file)
        found: dict[str, StoredTensor] = {}
        try:
            with safe_open(path, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118
                    tensor = tensors.get_slice(key)
                    found[key] = StoredTensor(
                        path, key, tuple(tensor.get_shape()), DTYPES[tensor.get_dtype()]
                    )
        except FileNotFoundError:
            raise InvalidRequest(f"{self.where(file)}: file {file} is missing") from None
        except KeyError as error:
            raise InvalidRequest(
                f"{self.where(file)}: {file} must contain only tensors of the types {', '.join(DTYPES)}, got"
                f" {error}"
            ) from None
        except (SafetensorError, OSError) as error:
            raise InvalidRequest(
                f"{self.where(file)}: {file} must be a complete safetensors file, got {error};"
                " try to copy it again"
            ) from None
        return found

    def _weight_files(self, part: str) -> list[str]:
        """Return the paths of a part's weight files: the single one, or the shards that its index names."""
        stem = self._stem_of(part)
        if stem is None:
            raise InvalidRequest(
                f"{self.where(part)}: {part} must contain"
                f" {' or '.join(_WEIGHT_STEMS)}, or the .index.json of one, got neither"
            )
        if not self.has(f"{part}/{stem}.index.json"):
            return [f"{part}/{stem}"]
        index = self.config(f"{part}/{stem}.index.json").get("weight_map", {})
        shards = set(index.values()) if isinstance(index, dict) else {index}
        if outside := [shard for shard in shards if not _is_file_name(shard)]:
            raise InvalidRequest(
                f"{self.where(part)}: {part}/{stem}.index.json must name files in its own folder, got"
                f" {', '.join(map(repr, outside[:3]))}"
            )
        return [f"{part}/{shard}" for shard in sorted(shards)]

    def _stem_of(self, part: str) -> str | None:
        """Return the name of a part's weight file; for shards, the name that their index is based on."""
        for stem in _WEIGHT_STEMS:
            if self.has(f"{part}/{stem}.index.json") or self.has(f"{part}/{stem}"):
                return stem
        return None

    def _placeholder_names(self, part: str) -> tuple[str, ...]:
        """Return the file names under which a library may look for a part's weights."""
        stem = self._stem_of(part)
        return _WEIGHT_STEMS if stem is None else (stem,)


def _is_file_name(name: object) -> bool:
    """Return whether this is a plain file name, which cannot point outside its folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name)


def _commit(path: Path) -> str | None:
    """Return the commit of a folder in the hub's cache or of a folder inside it; None for other folders."""
    parts = path.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-1] else None
