"""Sockets that a model's process has from its server and has no use for.

A process that Triton 2.51 starts while it serves, as after a death, is given the server's open connections
too. One that the server closes then stays open for its caller, for as long as the process lives.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


def close_sockets() -> None:
    """Close every socket of this process; for one that has opened none itself yet."""
    for descriptor in list(_DESCRIPTORS.iterdir()):
        # The listing's own is gone by now.
        with contextlib.suppress(FileNotFoundError):
            if str(descriptor.readlink()).startswith("socket:"):
                os.close(int(descriptor.name))
