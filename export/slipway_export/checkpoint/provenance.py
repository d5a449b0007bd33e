"""Record of the checkpoint files that a graph is made from, noted as they are read and compared by hash.

Families do not declare what they read. A :class:`Checkpoint` reports each file that it reads, or whose place
it gives out, to the :class:`Notes` being taken. Files that were only looked for are noted too, since they may
appear later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

_THERE, _MISSING = "there", "missing"

_taken: ContextVar[Notes | None] = ContextVar("notes of what is read", default=None)


@dataclass(frozen=True)
class Notes:
    """Names of the files that were read of a checkpoint.

    Args:
        place: Function that returns the place of a checkpoint's file, given its path within the checkpoint.
        content: Names of the files and folders that were read, or whose place was given out. They are paths
            within the checkpoint, or absolute for files of another one.
        looked_for: Names of the files that were looked for.
    """

    place: Callable[[str], Path]
    content: set[str] = field(default_factory=set)
    looked_for: set[str] = field(default_factory=set)

    def digests(self, digests: Digests) -> dict[str, str]:
        """Return a value for each noted file, by name, that changes if the file does."""
        found = {name: digests.of(self.place(name)) for name in self.content}
        return found | {
            name: _THERE if self.place(name).exists() else _MISSING for name in self.looked_for - self.content
        }


@contextmanager
def noting(place: Callable[[str], Path]) -> Iterator[Notes]:
    """Note what is read of a checkpoint in the block, also for enclosing notes of the same checkpoint.

    Args:
        place: Function as for :class:`Notes`.
    """
    notes, around = Notes(place), _taken.get()
    token = _taken.set(notes)
    try:
        yield notes
    finally:
        _taken.reset(token)
        if around is not None and around.place == place:
            around.content.update(notes.content)
            around.looked_for.update(notes.looked_for)


@contextmanager
def unnoted() -> Iterator[None]:
    """Note nothing that is read in the block, such as copies of files already noted."""
    token = _taken.set(None)
    try:
        yield
    finally:
        _taken.reset(token)


def note(place: Callable[[str], Path], name: str, *, content: bool = True) -> None:
    """Note a file that is read, or only looked for, if notes are being taken.

    Args:
        place: Function that returns the places of the files of the checkpoint.
        name: Name of the file within that checkpoint.
        content: True if the file is read, or its place is given to code that may read it.
    """
    if (notes := _taken.get()) is not None:
        known = name if place == notes.place else str(place(name).absolute())
        (notes.content if content else notes.looked_for).add(known)


class Digests:
    """Hashes of files, each computed once as long as the file's size and modification time stay the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, int], str] = {}

    def of(self, path: Path) -> str:
        """Return the sha256 of a file, or of a folder's files that are not hidden, or "missing"."""
        if path.is_dir():
            inside = {
                file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.is_file()
            }
            seen = {name: self.of(file) for name, file in inside.items() if not _hidden(name)}
            text = "\n".join(f"{name} {digest}" for name, digest in seen.items())
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

    def agree(self, read: Mapping[str, str], place: Callable[[str], Path]) -> bool:
        """Return whether every file still matches what :meth:`Notes.digests` returned for it."""
        return all(
            place(name).exists() if digest == _THERE else self.of(place(name)) == digest
            for name, digest in read.items()
        )


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)
