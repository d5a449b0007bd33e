"""Files and folders that no other user of the machine can read, whatever the umask is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from slipway_serving.errors import NotReady

UMASK = 0o077
"""Umask of `tritonserver`, its models and what they write: shared memory and traces hold requests."""


def make_empty(path: Path) -> None:
    """Create a file that only its user can read, or empty one and restrict it so.

    Raises:
        OSError: The file cannot be written, or belongs to another user.
    """
    descriptor = open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # /dev/stderr stays as it is
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def open_private(path: str, flags: int) -> int:
    """Open a file, as an `opener` of :func:`open`; a new one can be read by its user alone."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def make_folder(path: Path) -> None:
    """Create a folder that only its user can read, or make sure that an existing one is such a folder.

    Raises:
        NotReady: It belongs to another user, or others may enter it: somebody may have made it to read along.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise NotReady(
            f"server: folder {path} must belong to this user and to nobody else, got"
            f" {stat.filemode(found.st_mode)} of user {found.st_uid}; try removing it, or another TMPDIR"
        )
