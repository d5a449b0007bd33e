"""End a server's processes and free what they held, also when their parent was killed.

Every process of one server carries the server's id in its environment and every shared memory region
of its Python stubs starts with that id, so :func:`sweep` finds exactly them, whoever started them.
Run as a module this file is the watcher: a small process beside the server that bounds its log, waits for
its parent to end, then stops the server in good order and sweeps. (PR_SET_PDEATHSIG would be shorter, but it
fires when the starting *thread* ends, cannot free shared memory and gives in-flight work no time.)
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import psutil

from slipway_serving import triton_log
from slipway_serving.triton_install import python_path

ID_VARIABLE = "SLIPWAY_SERVER_ID"
SHARED_MEMORY = Path("/dev/shm")
STUB = "triton_python_backend_stub"
# After its exit timeout Triton gives up on requests, but looks for that only once a second.
EXIT_GRACE_S = 5.0


@dataclass(frozen=True)
class Belongings:
    """What has to be gone when a server is.

    Attributes:
        server_id: value of :data:`ID_VARIABLE` in its processes; prefix of its shared memory regions.
        folder: its private folder.
        pid: the `tritonserver` process.
        exit_timeout_s: time that its in-flight work is given on SIGTERM.
        log: its log, which the watcher keeps from growing without end.
    """

    server_id: str
    folder: str
    pid: int
    exit_timeout_s: float
    log: str


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
    return sorted(SHARED_MEMORY.glob(f"{server_id}*"))


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


def sweep(belongings: Belongings) -> None:
    """Kill what is left of a server's processes; free its shared memory and its folder."""
    end_processes(belongings.server_id)
    shutil.rmtree(belongings.folder, ignore_errors=True)


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


def start_watcher(belongings: Belongings, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the watcher; it ends when its standard input is closed or the calling process has died.

    Args:
        belongings: what it watches over.
        log: where it writes, should it fail; the caller's own pipes would be held open by it.
    """
    watcher = subprocess.Popen(
        [sys.executable, "-m", "slipway_serving.triton_process"],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        cwd="/",
        env={**os.environ, "PYTHONPATH": python_path(os.environ)},
        start_new_session=True,  # a terminal's Ctrl-C is for the parent, which closes our input in time
    )
    if watcher.stdin is None:
        raise RuntimeError("the watcher has no standard input")
    watcher.stdin.write(json.dumps(asdict(belongings)).encode() + b"\n")
    watcher.stdin.flush()
    return watcher


def _watch() -> None:
    """Wait for the parent's end, then stop the server and sweep."""
    parent = os.getppid()
    belongings = Belongings(**json.loads(sys.stdin.buffer.readline()))
    # A forked sibling may hold the pipe open after the parent's death, hence the second condition.
    while not select.select([sys.stdin], [], [], 1.0)[0] and os.getppid() == parent:
        triton_log.bound(Path(belongings.log))
    if belongings.pid in processes(belongings.server_id):
        with contextlib.suppress(ProcessLookupError):
            os.kill(belongings.pid, signal.SIGTERM)
        deadline = time.monotonic() + belongings.exit_timeout_s + EXIT_GRACE_S
        while belongings.pid in processes(belongings.server_id) and time.monotonic() < deadline:
            time.sleep(0.1)
    sweep(belongings)


if __name__ == "__main__":
    _watch()
