"""Cleanup of sockets and shared memory that a model's process inherits from its server.

A process that Triton 2.51 starts while it serves, such as the replacement of a dead one, inherits the
server's open connections. A connection that the server closes then stays open for its caller as long as the
process lives. The memory that the process shares with the server holds requests, and by default every user of
the machine can read it.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_SHARED_MEMORY = re.compile(r" (/dev/shm/[^/\n]+)$", re.MULTILINE)
_DESCRIPTORS = Path("/proc/self/fd")


def close_sockets() -> None:
    """Close every socket of this process; call this before the process opens its own."""
    for descriptor in list(_DESCRIPTORS.iterdir()):
        # The listing contains its own descriptor, which is closed by now.
        with contextlib.suppress(FileNotFoundError):
            if str(descriptor.readlink()).startswith("socket:"):
                os.close(int(descriptor.name))


def restrict_shared_memory() -> None:
    """Let only this user read this process's shared memory; call this before other processes share it."""
    for path in set(_SHARED_MEMORY.findall(_MAPS.read_text(encoding="utf-8", errors="replace"))):
        with contextlib.suppress(OSError):  # Other regions may be gone or belong to another user.
            os.chmod(path, 0o600)  # noqa: PTH101 - not a symbolic link
