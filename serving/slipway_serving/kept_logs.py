"""Where the log of a server lies that was told no other place, and how long the log of a failed one stays.

Each log has a folder of its own that only its user can enter: it holds ids of requests, and whoever knows an
id can end the request. A server that stops in good order removes its folder. One that failed names the log in
its error and leaves it there; :func:`remove_old` at a later start removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import psutil

KEPT_DAYS = 7
_FOLDER = re.compile(r"slipway-(?P<pid>\d+)-[0-9a-f]{8}-log")


def place(server_id: str) -> Path:
    """Return the path of a server's log.

    Args:
        server_id: Id of the server, which ends with a hyphen.
    """
    return Path(tempfile.gettempdir()) / f"{server_id}log" / "tritonserver.log"


def remove_old() -> None:
    """Remove this user's logs of servers that ended more than a week ago."""
    oldest_s = time.time() - KEPT_DAYS * 24 * 3600
    for folder in Path(tempfile.gettempdir()).glob("slipway-*-log"):
        with contextlib.suppress(OSError):  # Another start may remove it meanwhile.
            named, found = _FOLDER.fullmatch(folder.name), folder.lstat()
            last_s = max([found.st_mtime, *(file.lstat().st_mtime for file in folder.iterdir())])
            if not named or found.st_uid != os.geteuid() or last_s >= oldest_s:
                continue
            # A server without requests writes nothing for a long time.
            if not psutil.pid_exists(int(named["pid"])):
                shutil.rmtree(folder)
