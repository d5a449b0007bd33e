"""Detect model processes that ended during launch; Triton 2.51 waits for them without an end.

Triton starts each model's process through a shell and waits for its first message. Until that message
arrives, Triton does not check whether the process still lives: a process that cannot be executed, or that is
killed in its first moments, stays a zombie.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

GRACE_S = 10.0
"""Seconds in which Triton reaps a process that it has ended itself, even on a busy machine."""


class LaunchCheck:
    """Watcher of the processes that one `tritonserver` starts while its models load.

    Args:
        pid: Process id of `tritonserver`.
        clock: Callback that returns monotonic time, in seconds.
    """

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._clock = pid, clock
        self._zombie_since_s: dict[int, float] = {}

    def find_dead_process(self) -> str:
        """Describe how a process ended that stayed a zombie for :data:`GRACE_S`; return "" if none did."""
        now_s = self._clock()
        zombies = _zombies(self._pid)
        self._zombie_since_s = {pid: self._zombie_since_s.get(pid, now_s) for pid in zombies}
        dead = [pid for pid, since_s in self._zombie_since_s.items() if now_s - since_s >= GRACE_S]
        return _describe_end(zombies[dead[0]]) if dead else ""


def _zombies(pid: int) -> dict[int, int]:
    """Return the wait status of each zombie child by process id."""
    found = {}
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(OSError, psutil.Error):  # Triton may reap the child meanwhile.
                fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
                if fields[0] == "Z":
                    found[child.pid] = int(fields[-1])
    return found


def _describe_end(status: int) -> str:
    """Describe in words how a process with a wait status ended."""
    if number := status & 0x7F:
        return f"killed by {signal.Signals(number).name}"
    return f"exit code {status >> 8}"
