"""The folder in which the processes of one server tell each other of requests, by files.

It is the private one of the embedded server, else one named by the `tritonserver` process, whose children all
stubs are.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

FOLDER_VARIABLE = "SLIPWAY_SERVER_FOLDER"
"""Environment variable of a server's processes: the folder."""


def folder_here() -> Path:
    """Return the folder of the server whose stub this is."""
    return folder_of(os.getppid(), os.environ.get(FOLDER_VARIABLE))


def folder_of(pid: int, private: str | None) -> Path:
    """Return a server's folder.

    Args:
        pid: of `tritonserver`.
        private: the folder that its environment names, if it does.
    """
    if private:
        return Path(private)
    # The time at which it started, too: in a container it is process 1 again after a restart.
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return Path(tempfile.gettempdir()) / f"slipway-{pid}-{started}"


def folder_at(port: int) -> Path | None:
    """Return the folder of the server of this machine that listens on a port; None where none does."""
    process = tritonserver_at(port)
    return None if process is None else folder_of_process(process)


def folder_of_process(process: psutil.Process) -> Path:
    """Return the folder of the server that a running `tritonserver` is."""
    return folder_of(process.pid, process.environ().get(FOLDER_VARIABLE))


def tritonserver_at(port: int) -> psutil.Process | None:
    """Return the `tritonserver` of this machine that listens on a port; None where none does."""
    import psutil

    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            # Of several, its stubs have inherited the socket.
            process = psutil.Process(connection.pid) if connection.pid else None
            if process is not None and process.name() == "tritonserver":
                return process
    return None
