"""The processes in which a server's Python models run, each known by a file while it lives.

Triton 2.51 does not look after them: one that was killed leaves its model, and the server, ready for ever
while requests fail. So each says in the server's folder who it is, and :func:`lost` names those that are gone
without having taken that back. To look costs no request, and so a busy model is not taken for a dead one.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from slipway_serving.server_folder import folder_here

_FOLDER = "instances"


class Instance:
    """This process, as the one of a model's instance, until it is closed.

    Args:
        name: of the instance, as Triton gives it: unique on the server, and the same for its successor.
    """

    def __init__(self, name: str) -> None:
        folder = folder_here() / _FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path, self._said = folder / name, _told(os.getpid()) or ""
        new = folder / f".{name}"
        new.write_text(self._said)
        new.replace(self._path)

    def close(self) -> None:
        """Take the file away, unless a successor has its own there already."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.read_text() == self._said:
                self._path.unlink()


def lost(folder: Path) -> list[str]:
    """Return the names of the instances whose processes are gone.

    Args:
        folder: of the server, see :mod:`slipway_serving.server_folder`.
    """
    files = (folder / _FOLDER).glob("[!.]*")
    return sorted(file.name for file in files if not _lives(file.read_text()))


def _lives(said: str) -> bool:
    pid = said.partition(" ")[0]
    return pid.isdigit() and _told(int(pid)) == said


def _told(pid: int) -> str | None:
    """Return a living process with the time at which it started, since numbers come again."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A killed one stays as a zombie, since Triton does not ask how it ended.
    return None if state in "ZX" else f"{pid} {rest[18]}"
