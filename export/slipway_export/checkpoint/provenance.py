"""Record of the checkpoint files that a graph is made from, written as they are read, compared by hash.

Families do not declare what they read. A :class:`Checkpoint` notes each file that it reads, or whose path it
gives out, in its :class:`ReadLog`. Files that were only looked for are recorded too, since they may appear
later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_PRESENT, _MISSING = "there", "missing"


@dataclass(frozen=True)
class ReadRecord:
    """Names of the files that were read of a checkpoint.

    Args:
        locate: Function that returns the location of a checkpoint's file, given its path in the checkpoint.
        content: Names of the files and folders that were read, or whose path was given out. They are paths
            within the checkpoint, or absolute for files of another one.
        looked_for: Names of the files that were looked for.
    """

    locate: Callable[[str], Path]
    content: set[str] = field(default_factory=set)
    looked_for: set[str] = field(default_factory=set)

    def digests(self, digests: Digests) -> dict[str, str]:
        """Return a value for each recorded file, by name, that changes if the file does."""
        found = {name: digests.of(self.locate(name)) for name in self.content}
        return found | {
            name: _PRESENT if self.locate(name).exists() else _MISSING
            for name in self.looked_for - self.content
        }


@dataclass(frozen=True)
class ReadLog:
    """The records that a checkpoint's reads are noted in; each is open for the time of a block.

    Args:
        folder: Folder that names are completed with, for a checkpoint beside the recorded one; None if names
            are paths within the recorded checkpoint.
        records: Open records.
    """

    folder: Path | None = None
    records: list[ReadRecord] = field(default_factory=list)

    def beneath(self, folder: Path) -> ReadLog:
        """Return a log of another checkpoint, which notes absolute paths in the same records."""
        return ReadLog(folder, self.records)

    @contextmanager
    def recording(self, locate: Callable[[str], Path]) -> Iterator[ReadRecord]:
        """Record what is read in the block, also in the records that are already open.

        Args:
            locate: Function as for :class:`ReadRecord`.
        """
        record = ReadRecord(locate)
        self.records.append(record)
        try:
            yield record
        finally:
            self.records[:] = [each for each in self.records if each is not record]

    def note(self, name: str, *, content: bool = True) -> None:
        """Note a file that is read, or only looked for, in every open record.

        Args:
            name: Path of the file within the checkpoint.
            content: True if the file is read, or its path is given to code that may read it.
        """
        known = name if self.folder is None else str((self.folder / name).absolute())
        for record in self.records:
            (record.content if content else record.looked_for).add(known)


class Digests:
    """Hashes of files, each computed once as long as the file's size and modification time stay the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, int], str] = {}

    def of(self, path: Path) -> str:
        """Return the sha256 of a file, or of a folder's files that are not hidden, or "missing"."""
        if path.is_dir():
            files = {
                file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.is_file()
            }
            digests = {name: self.of(file) for name, file in files.items() if not _hidden(name)}
            text = "\n".join(f"{name} {digest}" for name, digest in digests.items())
            return hashlib.sha256(text.encode()).hexdigest()
        try:
            state = path.stat()
        except FileNotFoundError:
            return _MISSING
        # The inode is part of the key, so a renamed or linked file is not hashed again.
        key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
        if key not in self._known:
            with path.open("rb") as file:
                self._known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._known[key]

    def match(self, read: Mapping[str, str], locate: Callable[[str], Path]) -> bool:
        """Return whether every file still matches what :meth:`ReadRecord.digests` returned for it."""
        return all(
            locate(name).exists() if digest == _PRESENT else self.of(locate(name)) == digest
            for name, digest in read.items()
        )


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)
