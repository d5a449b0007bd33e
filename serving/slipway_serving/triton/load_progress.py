"""Progress report of a starting server: which models load, from its log and its processes.

:class:`Loading` receives the log from time to time. It reports a line when a model begins to load, when it
has loaded, and after every few seconds without another line.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from slipway_serving.system.server_processes import process_ids
from slipway_serving.triton import server_log

_EVERY_S = 5.0


class Loading:
    """Progress of the model loads of one server start.

    Args:
        folders: Folders of the repository's models.
        server_id: ID of the server, see :mod:`slipway_serving.system.server_processes`.
        say: Callback that receives each line of progress.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        server_id: str,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = {folder.name: folder for folder in folders}
        self._server_id, self._say, self._clock = server_id, say, clock
        self._began_s: dict[str, float] = {}
        self._over: set[str] = set()
        self._said_s = clock()

    def look(self, log: str) -> None:
        """Report what is new in the log since the last call."""
        now = self._clock()
        for model in server_log.begun(log):
            if model not in self._began_s:
                self._began_s[model] = now
                self._tell(now, f"loading {model} ({self._place(model)}, {self._on_disk(model)})")
        for model in server_log.loaded(log):
            if model in self._began_s and model not in self._over:
                self._over.add(model)
                seconds = now - self._began_s[model]
                self._tell(now, f"loaded {model} ({self._so_far}, after {seconds:.1f} s)")
        left = server_log.still_loading(log)
        if left and now - self._said_s >= _EVERY_S:
            held = ", ".join(
                f"{model} for {now - self._began_s[model]:.0f} s, {_size(size)} in memory"
                for model in left
                if (size := self._in_memory(model)) or len(left) == 1
            )
            self._tell(now, f"{self._so_far} loaded; loading {held or ', '.join(left)}")

    def _tell(self, now: float, line: str) -> None:
        self._said_s = now
        self._say(line)

    @property
    def _so_far(self) -> str:
        return f"{len(self._over)} of {len(self._folders)}"

    def _place(self, model: str) -> str:
        return f"{list(self._began_s).index(model) + 1} of {len(self._folders)}"

    def _on_disk(self, model: str) -> str:
        folder = self._folders.get(model)
        size = 0
        with contextlib.suppress(OSError):  # A file may be replaced meanwhile.
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder else 0
        return f"{_size(size)} on disk"

    def _in_memory(self, model: str) -> int:
        """Return the resident memory of the processes of a model's instances, in bytes."""
        held = 0
        for pid in process_ids(self._server_id):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                # A stub's command line has its instance's name: the model's with one or two numbers.
                if any(re.fullmatch(rf"{re.escape(model)}(_\d+)+", part) for part in process.cmdline()):
                    held += process.memory_info().rss
        return held


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
