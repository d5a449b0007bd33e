"""A gateway as a process of its own, whose memory and CPU time are read while it answers."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipway_benchmarks.processes import Tree, shown, slipway
from slipway_serving.protocol.errors import Unrecoverable

_READY_S = 120.0
_READY = "ready on "
# More samples would take processor time from the gateway on a small machine.
_SAMPLE_S = 1.0


@dataclass(frozen=True)
class RunningGateway:
    """A gateway that answers.

    Attributes:
        url: Address of its API.
        tree: Tree of its processes.
    """

    url: str
    tree: Tree


@contextlib.contextmanager
def running_gateway(
    triton: str, data: Path, log: Path, options: Sequence[str] = ()
) -> Iterator[RunningGateway]:
    """Run `slipway gateway` on a free port of this machine until the block ends.

    Args:
        triton: Address of the server's gRPC port.
        data: Folder of the database and the contents.
        log: Path of the file that receives the gateway's messages.
        options: Further options of `slipway gateway`.

    Raises:
        Unrecoverable: The gateway did not become ready; the message has its last lines.
    """
    arguments = ["gateway", "--triton", triton, "--triton-metrics-port", "0", *options]
    arguments += ["--data", str(data), "--port", "0"]
    with log.open("w", encoding="utf-8") as words:
        process = subprocess.Popen(slipway(*arguments), stdout=words, stderr=subprocess.STDOUT)
    try:
        url = _address(process, log, shown(arguments))
        with contextlib.closing(Tree(process.pid, _SAMPLE_S)) as tree:
            yield RunningGateway(url, tree)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _address(process: subprocess.Popen[bytes], log: Path, typed: str) -> str:
    """Wait until a gateway is ready and return its address."""
    deadline_s = time.monotonic() + _READY_S
    while _READY not in (text := log.read_text(encoding="utf-8", errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise Unrecoverable(f"`{typed}` must become ready, got:\n{text[-2000:]}")
        time.sleep(0.05)
    return text.partition(_READY)[2].split()[0]
