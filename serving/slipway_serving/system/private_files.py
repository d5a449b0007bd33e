"""Files and folders that no other user of the machine can read, whatever the umask is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from slipway_serving.protocol.errors import NotReady

UMASK = 0o077
"""Umask of `tritonserver` and its models. Their files must be private, since shared memory and traces contain
requests."""


def make_empty(path: Path) -> None:
    """Create an empty file that only its user can read, or empty and restrict an existing one.

    Raises:
        OSError: The file cannot be written, or belongs to another user.
    """
    descriptor = open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # a device such as /dev/stderr keeps its mode
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def open_private(path: str, flags: int) -> int:
    """Open a file as an `opener` of :func:`open`, so that only its user can read a new file."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def make_folder(path: Path) -> None:
    """Create a folder that only its user can read, or check that an existing one is private.

    Raises:
        NotReady: The folder belongs to another user, or others may enter it; somebody may have created it to
            read our files.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise NotReady(
            f"server: folder {path} must belong to this user and to nobody else, got"
            f" {stat.filemode(found.st_mode)} of user {found.st_uid}; try removing it, or another TMPDIR"
        )
