"""Temporary folders that a later process removes if the process that made them was killed.

The owner of a folder holds a shared lock on it, which the kernel releases when the process ends. Before it
makes a new folder, a process removes every folder with the same prefix that belongs to its user and that
nobody locks.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType


class TemporaryFolder:
    """Temporary folder that is removed on exit, or after a SIGKILL by the next one with its prefix.

    Use it as a context manager, which returns the folder's path, or call :meth:`remove`.

    Args:
        prefix: First part of the folder's name, the same for all folders of one purpose.
        within: Parent folder; None uses the system's folder for temporary files.

    Attributes:
        path: Path of the folder.
    """

    def __init__(self, prefix: str, within: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if within is None else within
        for other in parent.glob(f"{glob.escape(prefix)}*"):
            _remove_abandoned(other)
        self.path, self._lock = _locked_folder(prefix, parent)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder with its content, and release its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _locked_folder(prefix: str, parent: Path) -> tuple[Path, int]:
    """Create a folder and lock it before another process can remove it as abandoned."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # Another process removed it as abandoned.
            continue
        # On a file system without locks, such as some network shares, the folder of a killed owner stays.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
        if path.exists():
            return path, lock
        os.close(lock)


def _remove_abandoned(path: Path) -> None:
    """Remove a folder if it belongs to this user and no process locks it."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except OSError:  # Its owner still runs, or the file system has no locks.
        return
    finally:
        os.close(lock)
