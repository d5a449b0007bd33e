"""Default place of a server's log, and removal of old logs of failed servers.

Each log has its own folder that only its user can enter: the log contains request ids, and anyone who knows
an id can cancel the request. A server that stops normally removes its folder. A server that fails names the
log in its error and keeps it; :func:`remove_old_logs` deletes it at a later start.
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

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.system import private_files

KEPT_DAYS = 7
_FOLDER = re.compile(r"slipway-(?P<pid>\d+)-[0-9a-f]{8}-log")


def default_path(server_id: str) -> Path:
    """Return the default path of a server's log.

    Args:
        server_id: Id of the server, which ends with a hyphen.
    """
    return Path(tempfile.gettempdir()) / f"{server_id}log" / "tritonserver.log"


def create_log(path: Path, *, private_folder: bool) -> None:
    """Create an empty log file that only its user can read.

    Args:
        path: Path of the log.
        private_folder: True to create the log's folder too, for its user alone.

    Raises:
        InvalidRequest: The path cannot be written, or belongs to another user.
    """
    if private_folder:
        private_files.make_folder(path.parent)
    try:
        private_files.make_empty(path)
    except OSError as error:
        raise InvalidRequest(
            f"server: log must be a file that this user owns and may write, got {path}"
            f" ({error.strerror}); try another --log-file"
        ) from None


def remove_old_logs() -> None:
    """Remove this user's logs of servers that ended more than a week ago."""
    limit_s = time.time() - KEPT_DAYS * 24 * 3600
    for folder in Path(tempfile.gettempdir()).glob("slipway-*-log"):
        with contextlib.suppress(OSError):  # Another starting server may remove the folder meanwhile.
            named, status = _FOLDER.fullmatch(folder.name), folder.lstat()
            last_change_s = max([status.st_mtime, *(file.lstat().st_mtime for file in folder.iterdir())])
            if not named or status.st_uid != os.geteuid() or last_change_s >= limit_s:
                continue
            # A living server without requests writes nothing for a long time, so age alone is no proof.
            if not psutil.pid_exists(int(named["pid"])):
                shutil.rmtree(folder)
