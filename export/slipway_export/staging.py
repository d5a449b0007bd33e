"""The folder that an export works in, beside the repository: what of it outlives the export, and who has it.

Each export has a folder of its own, locked as long as its process lives, and removed when it is done. Where
the export ends in another way, what is finished stays (`record.py`); the next export of the same models takes
that over, and removes the rest. So no graph is left over twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import psutil

from slipway_export.record import keep_finished, records
from slipway_serving.errors import InvalidRequest

_LOCK = ".lock"


@contextlib.contextmanager
def staging(repository: Path, models: Iterable[str] = ()) -> Iterator[Path]:
    """Open a staging folder beside a repository, creating the repository where it is missing.

    An error in the block leaves what has a record.

    Args:
        repository: of the models.
        models: whose finished graphs are taken over from exports that were interrupted.

    Raises:
        InvalidRequest: the repository is not a folder, it or the folder around it cannot be written, or
            the two are on different file systems, where a model could not be renamed into place.
    """
    repository = repository.resolve()
    prefix = f".{repository.name}.slipway-staging-"
    try:
        repository.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=repository.parent))
        lock = _lock(folder)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"repository must be a folder that can be written, in one that can, got {repository} ({error})"
        ) from None
    with lock:
        try:
            _check_renames(folder, repository)
            _take_over(repository.parent, prefix, folder, set(models))
            yield folder
        except BaseException:
            _leave(folder)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _check_renames(folder: Path, repository: Path) -> None:
    if folder.stat().st_dev != repository.stat().st_dev:
        raise InvalidRequest(
            "repository must be on the file system of the folder around it,"
            f" got the mount point {repository}; try {repository / 'models'}"
        )
    if not os.access(repository, os.W_OK | os.X_OK):
        raise InvalidRequest(f"repository must be a folder that can be written, got {repository}")


def _lock(folder: Path) -> TextIO:
    """Take a folder's lock; the kernel lets it go with the file, however this process ends."""
    unnamed = folder / f"{_LOCK}.new"
    lock = unnamed.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unnamed.rename(folder / _LOCK)  # Nobody finds it before it is held.
    except BaseException:
        lock.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return lock


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder that another export left; False where one still has it."""
    try:
        lock = (folder / _LOCK).open("r+")
    except OSError:  # It was left, or is being made, before it was locked.
        pid = folder.name.rpartition("slipway-staging-")[2].split("-")[0]
        yield pid.isdigit() and not psutil.pid_exists(int(pid))
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _take_over(around: Path, prefix: str, folder: Path, models: set[str]) -> None:
    """Take finished graphs of some models from what others left, the newest first; remove the rest."""
    taken = set()
    left = [path for path in around.glob(f"{glob.escape(prefix)}*") if path != folder]
    for other in sorted(left, key=_changed, reverse=True):
        with _claimed(other) as ours:
            if not ours:
                continue
            for record in records(other):
                if record.model not in models:
                    continue
                if record.name in taken:
                    record.remove(other)
                else:
                    record.move(other, folder)
                    taken.add(record.name)
            _leave(other)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # Another export was quicker.
        return 0.0


def _leave(folder: Path) -> None:
    """Leave what is finished in a folder, or nothing."""
    if not keep_finished(folder):
        shutil.rmtree(folder, ignore_errors=True)
