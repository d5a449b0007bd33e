"""Which files of a checkpoint a graph is made from: noted while they are read, told apart by their hash.

Families are not asked what they read. A :class:`Checkpoint` tells each file that it reads, or gives the place
of, to the :class:`Notes` that are being taken; what was only looked for is noted too, since it may appear.
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
    """What was read of a checkpoint.

    Args:
        place: of a checkpoint's file by its path within it.
        content: names of the files and folders that were read, or whose place was given; within the
            checkpoint, or absolute for what lies in another.
        looked_for: names of those that were looked for.
    """

    place: Callable[[str], Path]
    content: set[str] = field(default_factory=set)
    looked_for: set[str] = field(default_factory=set)

    def digests(self, digests: Digests) -> dict[str, str]:
        """Return what tells whether a file is still the same, by its name."""
        found = {name: digests.of(self.place(name)) for name in self.content}
        return found | {
            name: _THERE if self.place(name).exists() else _MISSING for name in self.looked_for - self.content
        }


@contextmanager
def noting(place: Callable[[str], Path]) -> Iterator[Notes]:
    """Note what is read of a checkpoint, for notes that are being taken of it already too.

    Args:
        place: as for :class:`Notes`.
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
    """Note nothing of what is read in the block, such as copies of what was noted."""
    token = _taken.set(None)
    try:
        yield
    finally:
        _taken.reset(token)


def note(place: Callable[[str], Path], name: str, *, content: bool = True) -> None:
    """Note a file that is read, or only looked for, where notes are being taken.

    Args:
        place: of the files of the checkpoint that it is of.
        name: within that checkpoint.
        content: it is read, or its place is given to one who may.
    """
    if (notes := _taken.get()) is not None:
        known = name if place == notes.place else str(place(name).absolute())
        (notes.content if content else notes.looked_for).add(known)


class Digests:
    """Hashes of files, each computed once while the file's size and time of change stay."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, int], str] = {}

    def of(self, path: Path) -> str:
        """Return the sha256 of a file, or of all that a folder holds but what is hidden, or "missing"."""
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
        # A file that is renamed or linked stays the file.
        key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
        if key not in self._known:
            with path.open("rb") as file:
                self._known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._known[key]

    def agree(self, read: Mapping[str, str], place: Callable[[str], Path]) -> bool:
        """Whether every file is still what :meth:`Notes.digests` said of it."""
        return all(
            place(name).exists() if digest == _THERE else self.of(place(name)) == digest
            for name, digest in read.items()
        )


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)
