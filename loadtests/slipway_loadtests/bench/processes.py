"""Commands of ours as processes: what they take of time and memory, their children included.

A command's words go to a log file. Memory is the resident memory of the process and all below it, added up
several times a second; a page that two of them map counts twice. On a busy machine the time of the processors
says more than the time that went by.
"""

from __future__ import annotations

import contextlib
import os
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

from slipway_serving.errors import Unrecoverable

_SAMPLE_S = 0.2
_TAIL_LINES = 15


@dataclass(frozen=True)
class Ran:
    """What a command took.

    Attributes:
        command: as it would be typed.
        time_s: from its start to its end, seconds.
        cpu_s: of the processors, all cores together, seconds.
        peak_rss_bytes: of its processes at a time.
        load_average: of the machine over the minute before it began.
    """

    command: str
    time_s: float
    cpu_s: float
    peak_rss_bytes: int
    load_average: float


class Tree:
    """A process and all below it: their resident memory, sampled until it is closed, and their work.

    Attributes:
        peak_bytes: the most that was seen so far.
        now_bytes: what was seen last.
    """

    def __init__(self, pid: int) -> None:
        self.peak_bytes = self.now_bytes = 0
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()

    def forget(self) -> None:
        """Begin a new peak."""
        self.peak_bytes = 0

    def cpu_s(self) -> float:
        """Return the time of the processors that those which live have taken so far, seconds."""
        return sum(_cpu_s(process) for process in self._processes())

    def _processes(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def _follow(self) -> None:
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):
                if found := sum(map(_rss_bytes, self._processes())):
                    self.now_bytes = found
                    self.peak_bytes = max(self.peak_bytes, found)
            if self._done.wait(_SAMPLE_S):
                return


def _rss_bytes(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


def _cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _ended_cpu_s() -> float:
    """Return what all processes that this one started, and that ended, have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shown(arguments: Sequence[str]) -> str:
    """Return a command of ours as it would be typed."""
    return shlex.join(["slipway", *arguments])


def slipway(*arguments: str) -> list[str]:
    """Return a command of ours for the interpreter that runs this."""
    return [sys.executable, "-m", "slipway_cli.root", *arguments]


def measured(command: Sequence[str], typed: str, log: Path) -> Ran:
    """Run a command to its end.

    Args:
        command: what to run.
        typed: how a person would say it.
        log: takes its words.

    Raises:
        Unrecoverable: it failed; with its last words.
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
        url: its gRPC address.
        tree: its processes, watched on.
        started: what it took until it was ready.
    """

    url: str
    tree: Tree
    started: Ran


@contextlib.contextmanager
def serving(repository: Path, ready_timeout_s: int, log: Path) -> Iterator[Serving]:
    """Serve a repository by `slipway serve` on free ports; stop it at the end.

    Raises:
        Unrecoverable: it did not become ready; with its last words.
    """
    arguments = ["serve", "--repository", str(repository), "--ready-timeout-s", str(ready_timeout_s)]
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
                yield Serving(url, tree, Ran(typed, *took, load))
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate()


def _address(process: subprocess.Popen[str]) -> str | None:
    """Wait until a server says that it is ready; return its gRPC address, None if it ended before."""
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
