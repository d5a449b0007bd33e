"""Hub repositories: the file list first, then the configurations, then only the weights that are needed.

:func:`look` asks the hub for the names and sizes of a repository's files. A wrong id is refused by these and
by its configurations, before any weights are downloaded. `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_HUB_CACHE` and
`HF_TOKEN` are obeyed by the hub's own library. Files that are in its cache are not downloaded again.
"""

from __future__ import annotations

import glob
import os
import posixpath
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from slipway_export.progress import Report, format_bytes
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError

_WEIGHTS = frozenset(
    (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack", ".pkl", ".npz")
)
_CONFIGURATIONS = frozenset(
    (".json", ".yaml", ".yml", ".txt", ".model", ".conf", ".jinja", ".vocab", ".merges", ".tiktoken")
)
# Larger files are no configurations; the largest vocabulary of the public checkpoints has 17 MB.
_LARGEST_CONFIGURATION_BYTES = 64 * 2**20
_TRANSPORTS = ("httpx", "httpx2", "requests", "urllib3")
_SHOWN_FILES = 6


class HubDiskFull(SlipwayError):
    """The disk of the hub's cache is too small for the files of a checkpoint; none was downloaded."""

    code = "ROOM"


@dataclass(frozen=True)
class HubRepository:
    """Repository of a hub, with the list of its files.

    Args:
        hub_id: Id of the repository.
        where: Name of what it is used for, in messages.
        sizes: Sizes of its files in bytes, by path; empty if the hub was not asked.
        commit: Commit of the file list; None if the hub was not asked.
        cached: Folder of the snapshot in the cache that replaces the hub, if the hub was not asked.
        reason: Reason why the hub was not asked.
    """

    hub_id: str
    where: str
    sizes: Mapping[str, int]
    commit: str | None = None
    cached: Path | None = None
    reason: str = ""

    @property
    def folder(self) -> Path:
        """Folder of the snapshot in the cache, which may not exist yet."""
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        if self.cached is not None:
            return self.cached
        name = repo_folder_name(repo_id=self.hub_id, repo_type="model")
        return Path(constants.HF_HUB_CACHE).expanduser().resolve() / name / "snapshots" / str(self.commit)

    def missing(self, files: Collection[str]) -> dict[str, int]:
        """Return those of some files that the cache lacks, with their sizes in bytes."""
        from huggingface_hub import try_to_load_from_cache

        return {
            file: self.sizes[file]
            for file in sorted(files)
            if not isinstance(try_to_load_from_cache(self.hub_id, file, revision=self.commit), str)
        }

    def download(self, files: Collection[str]) -> Path:
        """Download files that the cache lacks; return the folder of the snapshot.

        Raises:
            InvalidRequest: The hub refuses, or the connection fails.
        """
        if self.cached is not None:
            return self.cached
        return _snapshot(self.hub_id, self.where, [glob.escape(file) for file in sorted(files)])


@dataclass(frozen=True)
class HubFolder:
    """Folder of a hub repository that contains a checkpoint, or a part of one.

    Args:
        repository: Repository.
        prefix: Path of the folder with a slash at its end; empty for the whole repository.
        unwanted: Folders that come from elsewhere and are never downloaded.
    """

    repository: HubRepository
    prefix: str = ""
    unwanted: tuple[str, ...] = ()

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Sizes of the files in the folder, by path within it."""
        return {
            file.removeprefix(self.prefix): size
            for file, size in self.repository.sizes.items()
            if file.startswith(self.prefix) and file.partition("/")[0] not in self.unwanted
        }

    @property
    def path(self) -> Path:
        """The folder in the cache, which may not exist yet."""
        return self.repository.folder / self.prefix

    def has(self, path: str) -> bool:
        """Return whether the hub has a file or folder with this path; the empty path is the folder itself."""
        if self.repository.cached is not None:
            return (self.path / path).exists()
        folder = f"{path}/" if path else ""
        return path in self.sizes or any(file.startswith(folder) for file in self.sizes)

    def names_in(self, path: str) -> set[str]:
        """Return the names of the files of a folder within this one; the empty path is this one."""
        return {PurePosixPath(file).name for file in self.sizes if posixpath.dirname(file) == path}

    def place(self, path: str) -> str:
        """Return a path within this folder as options name it, after the hub id."""
        return f"{self.repository.hub_id}/{self.prefix}{path}".rstrip("/")

    def configurations(self, also: Collection[str] = ()) -> Path:
        """Download the configurations, tokenizers and indexes of shards; return the folder in the cache.

        Args:
            also: Paths of further files that a family's layout names; weights among them are left out.

        Raises:
            InvalidRequest: The hub refuses, or the connection fails.
        """
        files = [path for path, size in self.sizes.items() if is_configuration(path, size)]
        files += [path for path in also if path in self.sizes and not is_weights(path)]
        return self.repository.download({self.prefix + path for path in files}) / self.prefix

    def part_configurations(self, parts: Iterable[str]) -> None:
        """Download the `config.json` of parts whose weights come from elsewhere, where there is one."""
        files = [f"{self.prefix}{part}/config.json" for part in parts]
        if found := [file for file in files if file in self.repository.sizes]:
            self.repository.download(found)

    def listed(self) -> str:
        """Describe the content of the folder for messages: its largest files."""
        if not self.sizes:
            return self.repository.reason or "no files"
        largest = sorted(self.sizes, key=lambda path: -self.sizes[path])[:_SHOWN_FILES]
        rest = len(self.sizes) - len(largest)
        return ", ".join(largest) + (f" and {rest} more" if rest else "")


def look(hub_id: str, where: str) -> HubRepository:
    """Ask the hub for a repository's files and their sizes; download nothing.

    Args:
        hub_id: Id of the repository.
        where: Name of what the repository is used for, for messages.

    Returns:
        The repository; if the hub cannot be reached or must not be asked, the snapshot in the cache.

    Raises:
        InvalidRequest: There is no such repository, it is not accessible, or neither hub nor cache has it.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled

    try:
        info: Any = HfApi().model_info(hub_id, files_metadata=True)
    except GatedRepoError:
        raise InvalidRequest(
            f"{where}: hub id {hub_id} must be accessible, got a gated repository; accept its terms at"
            f" {constants.ENDPOINT}/{hub_id}, then try `hf auth login`"
        ) from None
    except OfflineModeIsEnabled:
        return _from_cache(hub_id, where, "HF_HUB_OFFLINE is set, so only the cache was read")
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code < 500:
            raise _unreachable(hub_id, where, error) from None
        return _from_cache(hub_id, where, f"the hub failed ({_first_line(error)})", error)
    except Exception as error:
        if not is_transport_error(error):
            raise
        return _from_cache(hub_id, where, f"the hub was not reached ({_first_line(error)})", error)
    sizes = {file.rfilename: int(file.size or 0) for file in info.siblings or ()}
    return HubRepository(hub_id, where, sizes, info.sha)


def is_transport_error(error: Exception) -> bool:
    """Return whether an error means that a hub was not reached, or refused."""
    # The library passes on the errors of its HTTP library, which differs between its versions.
    return type(error).__module__.partition(".")[0] in _TRANSPORTS or isinstance(error, OSError)


def download_needed(needed: Sequence[tuple[HubFolder, Collection[str]]], report: Report | None) -> None:
    """Download the files that an export needs, after their size was reported and compared with the disk.

    Args:
        needed: Folders, and the paths of the files within each.
        report: Callback that receives a line for each folder, if any.

    Raises:
        HubDiskFull: The disk of the cache is too small; nothing was downloaded.
        InvalidRequest: The hub refuses, or the connection fails.
    """
    lacking = [(folder, paths, missing_files(folder, paths)) for folder, paths in needed]
    check_disk(sum(sum(files.values()) for _, _, files in lacking))
    for folder, paths, files in lacking:
        if report is not None and folder.repository.commit is not None and paths:
            report(describe(folder, paths))
        if files:
            folder.repository.download(files)


def missing_files(folder: HubFolder, paths: Collection[str]) -> dict[str, int]:
    """Return the sizes of the files that the cache lacks, by path in the repository."""
    if folder.repository.commit is None:
        return {}
    return folder.repository.missing({folder.prefix + path for path in paths})


def describe(folder: HubFolder, paths: Collection[str]) -> str:
    """Describe in one line what an export downloads from a folder."""
    lacking = missing_files(folder, paths)
    total, rest = sum(folder.sizes[path] for path in paths), sum(lacking.values())
    line = f"{folder.repository.hub_id}: {format_bytes(rest)} to download in {_count(len(lacking))}"
    kept = f", {format_bytes(total - rest)} are in the cache" if total > rest else ""
    whole = sum(folder.repository.sizes.values())
    return f"{line}{kept} (the repository has {format_bytes(whole)})"


def check_disk(size: int) -> None:
    """Refuse a download that is larger than the free space of the cache's disk.

    Args:
        size: Size of the download, in bytes.

    Raises:
        HubDiskFull: The disk is too small.
    """
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).expanduser().absolute()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if size > free:
        raise HubDiskFull(
            f"{cache}: its file system must have {format_bytes(size)} free for the checkpoint, got"
            f" {format_bytes(free)}; try HF_HUB_CACHE on another file system, or --component for fewer files"
        )


def is_weights(path: str) -> bool:
    """Return whether a file's name is one of weights."""
    return PurePosixPath(path).suffix in _WEIGHTS


def is_configuration(path: str, size: int) -> bool:
    """Return whether a file is a configuration, a tokenizer or an index of shards."""
    return PurePosixPath(path).suffix in _CONFIGURATIONS and size <= _LARGEST_CONFIGURATION_BYTES


def _from_cache(hub_id: str, where: str, reason: str, error: Exception | None = None) -> HubRepository:
    """Return the snapshot that the cache has of a repository."""
    try:
        # A pattern that no file has, since the cache may lack files that are not needed.
        folder = _snapshot(hub_id, where, ["."], local_files_only=True)
    except InvalidRequest as refused:
        raise (InvalidRequest(f"{refused}; {reason}") if error is None else refused) from None
    return HubRepository(hub_id, where, {}, cached=folder, reason=reason)


def _snapshot(hub_id: str, where: str, patterns: list[str], *, local_files_only: bool = False) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns, local_files_only=local_files_only))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise _unreachable(hub_id, where, error) from None


def _unreachable(hub_id: str, where: str, error: Exception) -> InvalidRequest:
    kinds = "an existing folder" if where.startswith("part") else "a preset, an existing folder"
    fix = ""
    if getattr(getattr(error, "response", None), "status_code", None) in (401, 404):
        fix = "; check the spelling, or try `hf auth login` for a private repository"
    return InvalidRequest(
        f"{where} must be {kinds}, or a reachable hub id, got {hub_id!r} ({_first_line(error)}){fix}"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(os.sep + ". ")


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files} files"
