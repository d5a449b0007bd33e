"""The working folder of an export, beside the repository: its lock, and what remains after an interruption.

Each export has a folder of its own, which is locked as long as its process lives and removed when it is done.
If the export ends in another way, the finished graphs stay (`export_record.py`). The next export of the same
models takes them over and removes the rest, so interrupted exports do not accumulate copies of a graph.
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

from slipway_export.repository.export_record import keep_finished, records
from slipway_serving.protocol.errors import InvalidRequest

_LOCK = ".lock"


@contextlib.contextmanager
def staging(repository: Path, models: Iterable[str] = ()) -> Iterator[Path]:
    """Open a staging folder beside a repository, creating the repository if it is missing.

    An error in the block keeps the files that have a record.

    Args:
        repository: Repository of the models.
        models: Names of the models whose finished graphs are taken over from interrupted exports.

    Raises:
        InvalidRequest: The repository is not a folder, it or its parent folder cannot be written, or the two
            are on different file systems, where a model could not be renamed into place.
    """
    repository = repository.resolve()
    prefix = f".{repository.name}.slipway-staging-"
    try:
        repository.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=repository.parent))
        lock = _lock(folder)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"repository must be a folder that can be written, like its parent, got {repository} ({error})"
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
            "repository must be on the file system of its parent folder,"
            f" got the mount point {repository}; try {repository / 'models'}"
        )
    if not os.access(repository, os.W_OK | os.X_OK):
        raise InvalidRequest(f"repository must be a folder that can be written, got {repository}")


def _lock(folder: Path) -> TextIO:
    """Lock a folder; the kernel releases the lock with the file, however this process ends."""
    unnamed = folder / f"{_LOCK}.new"
    lock = unnamed.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unnamed.rename(folder / _LOCK)  # Other processes find the lock file only once it is locked.
    except BaseException:
        lock.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return lock


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[bool]:
    """Lock a folder that another export left; yield False if that export still holds the lock."""
    try:
        lock = (folder / _LOCK).open("r+")
    except OSError:  # The folder has no lock: its export died before locking it, or is about to lock it.
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
    """Take over the finished graphs of some models from other exports, newest first; remove the rest."""
    taken_over = set()
    left = [path for path in around.glob(f"{glob.escape(prefix)}*") if path != folder]
    for other in sorted(left, key=_changed, reverse=True):
        with _claimed(other) as ours:
            if not ours:
                continue
            for record in records(other):
                if record.model not in models:
                    continue
                if record.name in taken_over:
                    record.remove(other)
                else:
                    record.move(other, folder)
                    taken_over.add(record.name)
            _leave(other)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # Another export has already removed it.
        return 0.0


def _leave(folder: Path) -> None:
    """Keep the finished files of a folder, or remove it if there are none."""
    if not keep_finished(folder):
        shutil.rmtree(folder, ignore_errors=True)
