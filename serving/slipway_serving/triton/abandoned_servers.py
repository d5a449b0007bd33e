"""Clean up after servers whose launcher and watcher were both killed.

The folder of each server in shared memory holds a file that lists what belongs to the server. The launcher
and the watcher each hold a shared lock on this file (:func:`create_runtime_folder`,
:func:`share_runtime_folder`), which the kernel releases however they end. So :func:`remove_leftovers`, which
each start calls, needs no guess about process ids: if it can lock a file exclusively, no launcher or watcher
uses that server any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import IO

from slipway_serving.system.server_processes import (
    RUNTIME_FOLDER_SUFFIX,
    SHARED_MEMORY,
    ServerResources,
    clean_up,
)

_RESOURCES_FILE = "belongings.json"


def create_runtime_folder(resources: ServerResources) -> IO[bytes]:
    """Create a server's folder in shared memory and mark it as in use by this process.

    Args:
        resources: Resources that belong to the server.

    Returns:
        The locked file; closing it, or the end of the process, releases the lock.
    """
    # Rename the folder only after the file is locked, so that no other start takes it for a leftover.
    hidden = resources.runtime_folder.with_name(f".{resources.runtime_folder.name}")
    hidden.mkdir(mode=0o700)
    file = (hidden / _RESOURCES_FILE).open("w+b", buffering=0)
    fcntl.flock(file, fcntl.LOCK_SH)
    file.write(json.dumps(asdict(resources)).encode())
    hidden.rename(resources.runtime_folder)
    return file


def share_runtime_folder(resources: ServerResources) -> IO[bytes] | None:
    """Mark a server's folder as in use by this process too; return None if the folder is gone."""
    with contextlib.suppress(FileNotFoundError):
        file = (resources.runtime_folder / _RESOURCES_FILE).open("rb")
        fcntl.flock(file, fcntl.LOCK_SH)
        return file
    return None


def remove_leftovers() -> list[str]:
    """End the processes of this user's dead servers and free their resources.

    Returns:
        The ids of those servers.
    """
    return [
        server_id
        for folder in SHARED_MEMORY.glob(f"slipway-*-{RUNTIME_FOLDER_SUFFIX}")
        if (server_id := _remove_leftover(folder))
    ]


def _remove_leftover(folder: Path) -> str | None:
    """Clean up after one server and return its id; None if it is in use or belongs to another user."""
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return None
        with (folder / _RESOURCES_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            resources = ServerResources(**json.load(file))
            if resources.runtime_folder == folder and Path(resources.folder).name.startswith(
                resources.server_id
            ):
                clean_up(resources)
                return resources.server_id
    except (OSError, ValueError, TypeError):  # The folder is in use, just being freed, or of another version.
        return None
    return None
