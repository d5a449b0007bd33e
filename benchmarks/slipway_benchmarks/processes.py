"""Our commands as processes, with the time and memory that they and their children take.

The output of a command goes to a log file. Memory is the resident memory of the process and all its
descendants, added up several times a second; a page that two of them map counts twice. On a busy machine, CPU
time says more than elapsed time.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from slipway_serving.protocol.errors import Unrecoverable

_SAMPLE_S = 0.2
_TAIL_LINES = 15


@dataclass(frozen=True)
class Ran:
    """Resources that a command took.

    Attributes:
        command: Command as a user would type it.
        time_s: Elapsed time from start to end, in seconds.
        cpu_s: CPU time of all cores together, in seconds.
        peak_rss_bytes: Peak resident memory of its processes together.
        load_average: Load average of the machine over the minute before the start.
    """

    command: str
    time_s: float
    cpu_s: float
    peak_rss_bytes: int
    load_average: float


class Tree:
    """A process and its descendants; samples their resident memory until it is closed, and reads CPU time.

    Args:
        pid: Identifier of the process.
        sample_s: Time between two samples, in seconds. A sample reads all processes of the machine.

    Attributes:
        peak_bytes: Largest sample so far.
        now_bytes: Latest sample.
    """

    def __init__(self, pid: int, sample_s: float = _SAMPLE_S) -> None:
        self.peak_bytes = self.now_bytes = 0
        self._sample_s = sample_s
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()

    def forget(self) -> None:
        """Start a new peak."""
        self.peak_bytes = 0

    def cpu_s(self) -> float:
        """Return the CPU time of the living processes so far, in seconds."""
        return sum(_cpu_s(process) for process in self._processes())

    def own_bytes(self, model: str | None = None) -> int:
        """Return the anonymous and the shared memory of the living processes together, in bytes.

        A page that several of them map counts only once. Pages of mapped files are left out, because a file's
        share depends on the processes outside the tree that map it too.

        Args:
            model: Name of a served Python model whose instances alone count; None counts all processes.
        """
        return sum(_own_bytes(each) for each in self._processes() if model is None or _serves(each, model))

    def _processes(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def _follow(self) -> None:
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):
                if found := sum(map(_rss_bytes, self._processes())):
                    self.now_bytes = found
                    self.peak_bytes = max(self.peak_bytes, found)
            if self._done.wait(self._sample_s):
                return


def _rss_bytes(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


def _own_bytes(process: psutil.Process) -> int:
    """Return a process's proportional share of anonymous and shared memory; 0 for one that has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def _serves(process: psutil.Process, model: str) -> bool:
    """Return True if a process is an instance of a model: Triton names instance 1 "MODEL_0_1"."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(re.fullmatch(rf"{re.escape(model)}(_\d+)+", part) for part in process.cmdline())
    return False


def _cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _ended_cpu_s() -> float:
    """Return the CPU time of all ended children of this process, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shown(arguments: Sequence[str]) -> str:
    """Return one of our commands as a user would type it."""
    return shlex.join(["slipway", *arguments])


def slipway(*arguments: str) -> list[str]:
    """Return one of our commands for the interpreter that runs this process."""
    return [sys.executable, "-m", "slipway_cli.root", *arguments]


def measured(command: Sequence[str], typed: str, log: Path) -> Ran:
    """Run a command to its end.

    Args:
        command: Command to run.
        typed: Command as a user would type it.
        log: Path of the file that receives its output.

    Raises:
        Unrecoverable: The command failed; the message has its last lines.
    """
    load, started, cpu_s = os.getloadavg()[0], time.monotonic(), _ended_cpu_s()
    with log.open("w", encoding="utf-8") as words:
        process = subprocess.Popen(command, stdout=words, stderr=subprocess.STDOUT)
        with contextlib.closing(Tree(process.pid)) as tree:
            code = process.wait()
    if code:
        raise Unrecoverable(f"`{typed}` ended with {code}:\n{_tail(log)}\n  log: {log}")
    return Ran(typed, time.monotonic() - started, _ended_cpu_s() - cpu_s, tree.peak_bytes, load)


@dataclass(frozen=True)
class Serving:
    """A server that is ready.

    Attributes:
        url: Address of its gRPC port.
        tree: Process tree of the server, which is still sampled.
        started: Resources that it took until it was ready.
        process: Process of `slipway serve`.
    """

    url: str
    tree: Tree
    started: Ran
    process: subprocess.Popen[str]


@contextlib.contextmanager
def serving(
    repository: Path, ready_timeout_s: int, log: Path, options: Sequence[str] = ()
) -> Iterator[Serving]:
    """Serve a repository with `slipway serve` on free ports, and stop it at the end if it still runs.

    Args:
        repository: Repository to serve.
        ready_timeout_s: Longest time for all models to load, in seconds.
        log: Path of the file that receives the server's messages.
        options: Further options of `slipway serve`.

    Raises:
        Unrecoverable: The server did not become ready; the message has its last lines.
    """
    arguments = ["serve", "--repository", str(repository), "--ready-timeout-s", str(ready_timeout_s)]
    arguments += options
    typed = shown(arguments)
    ports = [part for name in ("http", "grpc", "metrics") for part in (f"--{name}-port", "0")]
    load, began = os.getloadavg()[0], time.monotonic()
    with log.open("w", encoding="utf-8") as words:
        process = subprocess.Popen(
            slipway(*arguments, *ports), stdout=subprocess.PIPE, stderr=words, text=True
        )
        with contextlib.closing(Tree(process.pid)) as tree:
            try:
                url = _address(process)
                if url is None:
                    raise Unrecoverable(f"`{typed}` must become ready, got:\n{_tail(log)}\n  log: {log}")
                took = (time.monotonic() - began, tree.cpu_s(), tree.peak_bytes)
                yield Serving(url, tree, Ran(typed, *took, load), process)
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate()


def _address(process: subprocess.Popen[str]) -> str | None:
    """Wait until a server is ready and return its gRPC address, or None if it ended before."""
    assert process.stdout is not None
    url = None
    for line in process.stdout:
        name, _, value = line.partition(" ")
        url = value.strip() if name == "grpc" else url
        if line.strip() == "ready":
            return url
    return None


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:])
