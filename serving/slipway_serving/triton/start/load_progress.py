"""Progress report of a starting server: which models load, from its log and its processes.

:class:`LoadProgress` receives the log from time to time. It writes a line when a model begins to load, when
it has loaded, and after every few seconds without another line.
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

_INTERVAL_S = 5.0


class LoadProgress:
    """Progress of the model loads of one server start.

    Args:
        folders: Folders of the repository's models; none if Triton reads them from a URL.
        server_id: ID of the server, see :mod:`slipway_serving.system.server_processes`.
        write: Callback that receives each line of progress.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        server_id: str,
        write: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = {folder.name: folder for folder in folders}
        self._server_id, self._write, self._clock = server_id, write, clock
        self._begin_s: dict[str, float] = {}
        self._loaded: set[str] = set()
        self._last_line_s = clock()

    def update(self, log: str) -> None:
        """Write a line for each model that began or finished to load since the last call."""
        now = self._clock()
        for model in server_log.begun_models(log):
            if model not in self._begin_s:
                self._begin_s[model] = now
                self._write_line(now, f"loading {model} ({self._position(model)}, {self._disk_size(model)})")
        for model in server_log.loaded_models(log):
            if model in self._begin_s and model not in self._loaded:
                self._loaded.add(model)
                seconds = now - self._begin_s[model]
                self._write_line(now, f"loaded {model} ({self._loaded_count}, after {seconds:.1f} s)")
        left = server_log.loading_models(log)
        if left and now - self._last_line_s >= _INTERVAL_S:
            loading = ", ".join(
                f"{model} for {now - self._begin_s[model]:.0f} s, {_format_size(size)} in memory"
                for model in left
                if (size := self._memory_bytes(model)) or len(left) == 1
            )
            self._write_line(now, f"{self._loaded_count} loaded; loading {loading or ', '.join(left)}")

    def _write_line(self, now: float, line: str) -> None:
        self._last_line_s = now
        self._write(line)

    @property
    def _loaded_count(self) -> str:
        return f"{len(self._loaded)} of {self._total}"

    def _position(self, model: str) -> str:
        return f"{list(self._begin_s).index(model) + 1} of {self._total}"

    @property
    def _total(self) -> int:
        """Number of models; of a repository that Triton reads from a URL, those that began to load."""
        return len(self._folders) or len(self._begin_s)

    def _disk_size(self, model: str) -> str:
        folder = self._folders.get(model)
        size = 0
        with contextlib.suppress(OSError):  # A file may be replaced meanwhile.
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder else 0
        return f"{_format_size(size)} on disk"

    def _memory_bytes(self, model: str) -> int:
        """Return the resident memory of the processes of a model's instances, in bytes."""
        memory_bytes = 0
        for pid in process_ids(self._server_id):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                # A stub's command line has its instance's name: the model's with one or two numbers.
                if any(re.fullmatch(rf"{re.escape(model)}(_\d+)+", part) for part in process.cmdline()):
                    memory_bytes += process.memory_info().rss
        return memory_bytes


def _format_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
