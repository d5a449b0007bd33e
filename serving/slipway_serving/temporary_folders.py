"""Temporary folders that the next process removes when the process that made them was killed.

The owner of a folder holds a shared lock on it; the kernel releases the lock with the process. Before a new
folder is made, every folder of the same prefix that belongs to this user and that nobody locks is removed.
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
    """A temporary folder that is removed on leaving, or by the next one of its prefix after a SIGKILL.

    Use as a context manager, which gives the folder's path, or call :meth:`remove`.

    Args:
        prefix: First part of the folder's name, the same for all folders of one purpose.
        within: Folder to make it in; the system's folder for temporary files when None.
    """

    def __init__(self, prefix: str, within: Path | None = None) -> None:
        around = Path(tempfile.gettempdir()) if within is None else within
        for other in around.glob(f"{glob.escape(prefix)}*"):
            _remove_abandoned(other)
        self.path, self._lock = _locked_folder(prefix, around)

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


def _locked_folder(prefix: str, around: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=around))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # Another process took it for an abandoned one.
            continue
        # On a file system without locks, such as some network shares, a killed owner's folder stays.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
        if path.exists():
            return path, lock
        os.close(lock)


def _remove_abandoned(path: Path) -> None:
    """Remove a folder of this user that no process locks; leave any other."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except OSError:  # Its owner lives, or the file system has no locks.
        return
    finally:
        os.close(lock)
