"""LitServe server in a separate process, which is suspended while others are measured."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from numpy.typing import NDArray

from slipway_benchmarks.servers.closed_loop import Target
from slipway_benchmarks.servers.litserve_wakeword import Kind
from slipway_serving.protocol.errors import NotReady

_READY_S = 60.0


@dataclass(frozen=True)
class LitServe:
    """Running LitServe server, suspended while others are measured.

    Attributes:
        port: Port of the server on this machine.
        group: Process group of the server.
    """

    port: int
    group: int

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Resume the server within the block; otherwise its idle processes would take time from others."""
        os.killpg(self.group, signal.SIGCONT)
        try:
            yield
        finally:
            os.killpg(self.group, signal.SIGSTOP)


@contextlib.contextmanager
def litserve(repository: Path, word: str, kind: Kind, threads: int, most_batched: int) -> Iterator[LitServe]:
    """Run a LitServe server for a repository's wake-word graphs, suspended at first.

    Args:
        repository: Repository with the graphs.
        word: Wake word to detect.
        kind: Kind of the requests.
        threads: Number of threads of ONNX Runtime.
        most_batched: Largest number of requests in a batch.

    Raises:
        NotReady: The server does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [
        sys.executable, "-m", "slipway_benchmarks.servers.litserve_wakeword", str(port), str(repository),
        word, kind, str(threads), str(most_batched),
    ]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        # Its workers share its process group; a signal to the main process alone would leave them running.
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            until = time.monotonic() + _READY_S
            while not _healthy(port):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    text = log.read().decode(errors="replace")[-500:]
                    raise NotReady(f"bench: LitServe must come up, got: {text}")
                time.sleep(0.2)
            os.killpg(process.pid, signal.SIGSTOP)
            yield LitServe(port, process.pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def litserve_target(port: int, tensor: NDArray[Any]) -> Target:
    """Return the request for LitServe."""
    body = json.dumps({"data": base64.b64encode(tensor.tobytes()).decode()}).encode()
    return Target(port, "/predict", body, {"Content-Type": "application/json"})


def _healthy(port: int) -> bool:
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=2, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.status_code == httpx.codes.OK
