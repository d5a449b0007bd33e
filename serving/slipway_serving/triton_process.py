"""A server's processes, what they hold, and how they are ended and it is freed.

Every process of one server carries the server's id in its environment and every shared memory region
of its Python stubs starts with that id, so :func:`sweep` finds exactly them, whoever started them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ID_VARIABLE = "SLIPWAY_SERVER_ID"
SHARED_MEMORY = Path("/dev/shm")
STUB = "triton_python_backend_stub"
REQUESTS = "requests"
"""What the name of :attr:`Belongings.requests` ends with."""
_BLOCKED = re.compile(rb"^SigBlk:\t(\w+)$", re.MULTILINE)
_ALONE = {1 << number - 1: number for number in (signal.SIGABRT, signal.SIGSEGV)}


@dataclass(frozen=True)
class Belongings:
    """What has to be gone when a server is.

    Attributes:
        server_id: value of :data:`ID_VARIABLE` in its processes; prefix of its shared memory regions.
        folder: its private folder.
        pid: the `tritonserver` process.
        exit_timeout_s: time that its in-flight work is given on SIGTERM.
        log: its log, which the watcher keeps from growing without end.
        traces: whether it traces requests.
    """

    server_id: str
    folder: str
    pid: int
    exit_timeout_s: float
    log: str
    traces: bool = False

    @property
    def requests(self) -> Path:
        """Folder of :mod:`slipway_serving.server_folder`, in memory.

        A model's process that is started anew writes there, which must not fail where the disk is full.
        """
        return SHARED_MEMORY / f"{self.server_id}{REQUESTS}"


def processes(server_id: str) -> list[int]:
    """Return the pids of the living processes that carry a server's id."""
    found = []
    for process in psutil.process_iter():
        # A process may end while we look at it; those of other users cannot be read.
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(ID_VARIABLE) == server_id:
                found.append(process.pid)
    return found


def shared_memory(server_id: str) -> list[Path]:
    """Return the shared memory regions whose names start with a server's id."""
    return sorted(path for path in SHARED_MEMORY.glob(f"{server_id}*") if not path.is_dir())


def stubs(pid: int) -> dict[int, str]:
    """Return the models whose instances the living processes of a `tritonserver` are, by their pids."""
    found = {}
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                command = child.cmdline()  # empty of one that has ended and was not waited for
                if command and Path(command[0]).name == STUB:
                    # REPOSITORY/MODEL/VERSION/FILE
                    found[child.pid] = Path(command[1]).parent.parent.name
    return found


def ended_by(code: int) -> str:
    """Return how a process ended, in words, from its return code as `subprocess` gives it."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal and does not run; a debugger's hold does not count."""
    with contextlib.suppress(OSError):  # It may end meanwhile.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def dies_of(pid: int) -> signal.Signals | None:
    """Return the signal that a process is dying of: one of its threads is in Triton's handler of it.

    The handler writes a stack trace, for each line of which it forks. Where the signal comes from within
    malloc, as it does when memory was freed twice, that waits for malloc's lock for ever: the process neither
    serves nor ends, and goes on saying that it lives. Seen by what signals the thread blocks: that one alone.
    """
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # It may end meanwhile.
            blocked = int(_BLOCKED.findall(status.read_bytes())[0], 16)
            if found := _ALONE.get(blocked):
                return found
    return None


def sweep(belongings: Belongings) -> None:
    """Kill what is left of a server's processes; free its shared memory and its folders."""
    end_processes(belongings.server_id)
    for folder in (belongings.folder, belongings.requests):
        shutil.rmtree(folder, ignore_errors=True)


def end_processes(server_id: str) -> None:
    """Kill what is left of a server's processes and free its shared memory."""
    deadline = time.monotonic() + 10
    while (pids := processes(server_id)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    for region in shared_memory(server_id):
        region.unlink(missing_ok=True)
