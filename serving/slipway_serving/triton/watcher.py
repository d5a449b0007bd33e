"""Watcher: a small process beside a server that limits its log and stops it when the launcher has ended.

PR_SET_PDEATHSIG would be shorter, but it fires when the starting *thread* ends, cannot free shared memory and
gives in-flight work no time.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from slipway_serving.system.server_processes import ServerResources, clean_up, describe_exit, process_ids
from slipway_serving.triton import server_log, termination
from slipway_serving.triton.abandoned_servers import share_runtime_folder
from slipway_serving.triton.install.layout import python_path

PAUSE_S = 5.0
"""Shortest time between two starts of a watcher, in seconds, so that one that always dies does not use a
core."""


class Watcher:
    """Watcher process of one running server, which is restarted when it dies.

    Args:
        resources: Resources of the server that the watcher looks after.
        record_event: Callback that receives the name of an event and its facts.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, resources: ServerResources, record_event: Callable[..., object]) -> None:
        self._resources, self._record_event = resources, record_event
        self._started_s = time.monotonic()
        self._process = _start(resources)

    def restart_if_dead(self) -> None:
        """Start a new watcher process if the current one has ended, at most once every few seconds."""
        code = self._process.poll()
        if code is None or time.monotonic() - self._started_s < PAUSE_S:
            return
        self._started_s = time.monotonic()
        try:
            self._process = _start(self._resources)
        except OSError as error:
            self._record_event("watcher_start_failed", reason=str(error))
        else:
            self._record_event("watcher_restarted", reason=describe_exit(code))

    def kill(self) -> None:
        """End the watcher at once and leave the server's resources as they are."""
        self._process.kill()
        self._process.wait()

    def finish(self) -> None:
        """Let the watcher clean_up what is left of the server and end, and wait for it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def _start(resources: ServerResources) -> subprocess.Popen[bytes]:
    """Start a watcher's process, which ends when its standard input is closed or the caller has died."""
    # The watcher writes its errors to the log, since it would otherwise hold the caller's own pipes open.
    with server_log.open_for_append(Path(resources.log)) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "slipway_serving.triton.watcher"],
            stdin=subprocess.PIPE,
            bufsize=0,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, "PYTHONPATH": python_path(os.environ)},
            start_new_session=True,  # a terminal's Ctrl-C must reach only the parent
        )
    if process.stdin is None:
        raise RuntimeError("the watcher has no standard input")
    with contextlib.suppress(BrokenPipeError):  # restart_if_dead() replaces a watcher that died at once.
        process.stdin.write(json.dumps(asdict(resources)).encode() + b"\n")
    return process


def _run() -> None:
    """Wait for the end of the parent, then stop the server and clean_up what is left of it."""
    parent = os.getppid()
    resources = ServerResources(**json.loads(sys.stdin.buffer.readline()))
    lock = share_runtime_folder(resources)
    # A forked sibling may hold the pipe open after the parent's death, hence the second condition.
    while not select.select([sys.stdin], [], [], 1.0)[0] and os.getppid() == parent:
        server_log.limit_size(Path(resources.log))
    try:
        if resources.pid in process_ids(resources.server_id):
            termination.drain_pipelines(resources)
            termination.shut_down(resources)
    finally:
        clean_up(resources)
        if lock is not None:
            lock.close()


if __name__ == "__main__":
    _run()
