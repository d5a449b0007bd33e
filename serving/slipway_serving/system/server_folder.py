"""The runtime folder of a server, in which its processes exchange the state of requests through files.

`slipway serve` names a private folder in an environment variable. Otherwise the folder's name follows
from the `tritonserver` process, which is the parent of all stubs.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

FOLDER_VARIABLE = "SLIPWAY_SERVER_FOLDER"
"""Environment variable that gives a server's processes the path of the folder."""


def runtime_folder() -> Path:
    """Return the runtime folder of the server that this stub belongs to."""
    return runtime_folder_of(os.getppid(), os.environ.get(FOLDER_VARIABLE))


def runtime_folder_of(pid: int, private: str | None) -> Path:
    """Return a server's runtime folder.

    Args:
        pid: Process ID of `tritonserver`.
        private: Folder that its environment names; None or "" if it names none.
    """
    if private:
        return Path(private)
    # The name includes the start time, since tritonserver is process 1 again after a container restart.
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return Path(tempfile.gettempdir()) / f"slipway-{pid}-{started}"


def runtime_folder_at(port: int) -> Path | None:
    """Return the runtime folder of the server that listens on a port of this machine; None if none does."""
    process = tritonserver_at(port)
    return None if process is None else runtime_folder_of_process(process)


def runtime_folder_of_process(process: psutil.Process) -> Path:
    """Return the runtime folder of a running `tritonserver`."""
    return runtime_folder_of(process.pid, process.environ().get(FOLDER_VARIABLE))


def tritonserver_at(port: int) -> psutil.Process | None:
    """Return the `tritonserver` process that listens on a port of this machine; None if none does."""
    import psutil

    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            # Stubs inherit the server's socket, so several processes may listen on the port.
            process = psutil.Process(connection.pid) if connection.pid else None
            if process is not None and process.name() == "tritonserver":
                return process
    return None
