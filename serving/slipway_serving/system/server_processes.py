"""Processes and shared memory of one server: how to find them, end them and free what they hold.

Every process of a server carries the server's ID in its environment, and the name of every shared memory
region of its Python stubs starts with that ID. So :func:`clean_up` finds exactly these, whoever started them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ID_VARIABLE = "SLIPWAY_SERVER_ID"
SHARED_MEMORY = Path("/dev/shm")
STUB = "triton_python_backend_stub"
MODELS = "models"
"""Name of the link to the model repository in the server's folder."""
RUNTIME_FOLDER_SUFFIX = "requests"
"""Suffix of the name of :attr:`ServerResources.runtime_folder`."""
_INSTANCE = re.compile(r"([^/]+)_\d+_\d+")
_BLOCKED = re.compile(rb"^SigBlk:\t(\w+)$", re.MULTILINE)
_CRASH_SIGNALS = {1 << number - 1: number for number in (signal.SIGABRT, signal.SIGSEGV)}


@dataclass(frozen=True)
class ServerResources:
    """Resources of one server that must be removed when it ends.

    Attributes:
        server_id: Value of :data:`ID_VARIABLE` in its processes and prefix of its shared memory regions.
        folder: Path of its private folder.
        pid: Process ID of `tritonserver`; 0 before it was started.
        exit_timeout_s: Longest time for in-flight work to finish after SIGTERM, in seconds.
        log: Path of its log, whose size the watcher limits.
        traces: True if it traces requests.
        library_backends: Names of the backends whose models run inside `tritonserver`.
        http_url: "HOST:PORT" of its HTTP endpoint.
        checkpoint_on_stop: True if its pipelines stop their videos when it stops, instead of finishing them.
    """

    server_id: str
    folder: str
    pid: int
    exit_timeout_s: float
    log: str
    traces: bool = False
    library_backends: Sequence[str] = ()
    http_url: str = ""
    checkpoint_on_stop: bool = False

    @property
    def runtime_folder(self) -> Path:
        """Runtime folder of the server (:mod:`slipway_serving.system.server_folder`), in shared memory.

        A restarted model process writes there, and a full disk must not prevent that.
        """
        return SHARED_MEMORY / f"{self.server_id}{RUNTIME_FOLDER_SUFFIX}"


def process_ids(server_id: str) -> list[int]:
    """Return the process IDs of the living processes that carry a server's ID."""
    found = []
    for process in psutil.process_iter():
        # A process may end while we read it, and processes of other users cannot be read.
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(ID_VARIABLE) == server_id:
                found.append(process.pid)
    return found


def shared_memory_regions(server_id: str) -> list[Path]:
    """Return the shared memory regions whose names start with a server's ID."""
    return sorted(path for path in SHARED_MEMORY.glob(f"{server_id}*") if not path.is_dir())


def stubs(pid: int) -> dict[int, str]:
    """Return the living stub processes of a `tritonserver`: the name of the model by process ID."""
    found = {}
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                command = child.cmdline()  # It is empty for a zombie process.
                if command and Path(command[0]).name == STUB:
                    found[child.pid] = _model_of(command)
    return found


def _model_of(command: Sequence[str]) -> str:
    """Return the model of a stub, given its command line."""
    # The first argument is REPOSITORY/MODEL/VERSION/FILE, where the repository is our link.
    *_, repository, model, _, _ = ("", "", *Path(command[1]).parts)
    if repository == MODELS:
        return model
    # Triton copies a model from a URL into a folder of another name. A later argument is
    # MODEL_GROUP_INSTANCE.
    instances = [match[1] for part in command[2:] if (match := _INSTANCE.fullmatch(part))]
    return instances[-1] if instances else model


def describe_exit(code: int) -> str:
    """Describe in words how a process ended, from its return code in the form of `subprocess`."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def is_stopped(pid: int) -> bool:
    """Return True if a signal has stopped a process; a process that a debugger holds does not count."""
    with contextlib.suppress(OSError):  # The process may end meanwhile.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def crash_signal(pid: int) -> signal.Signals | None:
    """Return the signal that a process is dying of, if one of its threads is in Triton's signal handler.

    The handler writes a stack trace and forks for each line of it. If the signal was raised within malloc, as
    after a double free, the fork waits for malloc's lock forever: the process neither serves nor ends, and
    still reports that it is live. A thread in the handler is recognised by the signals that it blocks: that
    signal alone.
    """
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # The process may end meanwhile.
            blocked = int(_BLOCKED.findall(status.read_bytes())[0], 16)
            if found := _CRASH_SIGNALS.get(blocked):
                return found
    return None


def clean_up(resources: ServerResources) -> None:
    """Kill the remaining processes of a server, free its shared memory and remove its folders."""
    kill_processes(resources.server_id)
    for folder in (resources.folder, resources.runtime_folder):
        shutil.rmtree(folder, ignore_errors=True)


def kill_processes(server_id: str) -> None:
    """Kill the remaining processes of a server and free its shared memory."""
    deadline = time.monotonic() + 10
    while (pids := process_ids(server_id)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    for region in shared_memory_regions(server_id):
        region.unlink(missing_ok=True)
