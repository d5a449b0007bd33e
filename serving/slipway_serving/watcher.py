"""The small process beside a server that bounds its log, and stops it when its parent has ended.

(PR_SET_PDEATHSIG would be shorter, but it fires when the starting *thread* ends, cannot free shared memory
and gives in-flight work no time.)
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO

from slipway_serving import stopping, triton_log
from slipway_serving.triton_install import python_path
from slipway_serving.triton_process import Belongings, processes, sweep


def start_watcher(belongings: Belongings, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the watcher; it ends when its standard input is closed or the calling process has died.

    Args:
        belongings: what it watches over.
        log: where it writes, should it fail; the caller's own pipes would be held open by it.
    """
    watcher = subprocess.Popen(
        [sys.executable, "-m", "slipway_serving.watcher"],
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
        stopping.finish_pipelines(belongings)
        stopping.end(belongings)
    sweep(belongings)


if __name__ == "__main__":
    _watch()
