"""Commands of ours as processes: what they take of time and memory, their children included.

A command's words go to a log file. Memory is the resident memory of the process and all below it, added up
several times a second; a page that two of them map counts twice.
"""

from __future__ import annotations

import contextlib
import os
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
        peak_rss_bytes: of its processes at a time.
        load_average: of the machine over the minute before it began.
    """

    command: str
    time_s: float
    peak_rss_bytes: int
    load_average: float


class Memory:
    """Resident memory of a process and all below it, sampled until it is closed.

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

    def _follow(self) -> None:
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):
                tree = [self._root, *self._root.children(recursive=True)]
                if found := sum(map(_rss_bytes, tree)):
                    self.now_bytes = found
                    self.peak_bytes = max(self.peak_bytes, found)
            if self._done.wait(_SAMPLE_S):
                return


def _rss_bytes(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


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
    load, started = os.getloadavg()[0], time.monotonic()
    with log.open("w", encoding="utf-8") as words:
        process = subprocess.Popen(command, stdout=words, stderr=subprocess.STDOUT)
        with contextlib.closing(Memory(process.pid)) as memory:
            code = process.wait()
    if code:
        raise Unrecoverable(f"`{typed}` ended with {code}:\n{_tail(log)}\n  log: {log}")
    return Ran(typed, time.monotonic() - started, memory.peak_bytes, load)


@dataclass(frozen=True)
class Serving:
    """A server that is ready.

    Attributes:
        url: its gRPC address.
        memory: of its processes, sampled on.
        started: what it took until it was ready.
    """

    url: str
    memory: Memory
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
        with contextlib.closing(Memory(process.pid)) as memory:
            try:
                url = _address(process)
                if url is None:
                    raise Unrecoverable(f"`{typed}` must become ready, got:\n{_tail(log)}\n  log: {log}")
                yield Serving(url, memory, Ran(typed, time.monotonic() - began, memory.peak_bytes, load))
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
