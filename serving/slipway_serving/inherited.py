"""What a model's process gets from its server and must change before it serves.

A process that Triton 2.51 starts while it serves, as after a death, is given the server's open connections
too. One that the server closes then stays open for its caller, for as long as the process lives. The memory
that the process shares with the server holds requests, and every user of the machine may read it.
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
    """Close every socket of this process; for one that has opened none itself yet."""
    for descriptor in list(_DESCRIPTORS.iterdir()):
        # The listing's own is gone by now.
        with contextlib.suppress(FileNotFoundError):
            if str(descriptor.readlink()).startswith("socket:"):
                os.close(int(descriptor.name))


def restrict_shared_memory() -> None:
    """Let only this user read the shared memory of this process; for one that shares none with others yet."""
    for path in set(_SHARED_MEMORY.findall(_MAPS.read_text(encoding="utf-8", errors="replace"))):
        with contextlib.suppress(OSError):  # Regions of other names may be gone, or another user's.
            os.chmod(path, 0o600)  # noqa: PTH101 - not a symbolic link
