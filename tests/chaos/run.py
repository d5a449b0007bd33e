"""Soak `slipway serve` while its disk fills up, its stderr has no reader and its processes die: `make chaos`.

The log of the server lies on a file system of 2 MiB, which is full half of the time. The reader of its stderr
is closed once the server is ready. `slipway soak` sends the traffic, kills processes of models and judges the
answers; this program kills the watcher and `tritonserver` as well, and looks at what is left in the end.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from slipway_serving.system.server_folder import tritonserver_at
from slipway_serving.system.server_processes import ID_VARIABLE, process_ids, shared_memory_regions

SLIPWAY = str(Path(sys.executable).parent / "slipway")
DISK_BYTES = 2 << 20
ROUND_S = 3.0
"""Seconds that the disk is full, and that it is not."""
WATCHER = "the watcher was killed"
WATCHER_S = 30.0
"""Seconds after which a watcher that was killed must have been started anew."""
KILL_EVERY_S = 12.0
"""Seconds between two kills of the watcher. At the second and each third from there tritonserver dies too."""


def main() -> int:
    """Run the chaos that the command line asks for; return 1 where anything did not hold."""
    parser = _parser()
    asked = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("user must be root, who may mount the small disk, got another one; try sudo")
    asked.output.mkdir(parents=True, exist_ok=True)
    with _small_disk(asked.output / "disk") as disk, _served(asked.repository, asked.port, disk) as server:
        triton = tritonserver_at(asked.port)
        if triton is None:
            raise RuntimeError(f"chaos: tritonserver must listen on port {asked.port}, got none")
        server_id = triton.environ()[ID_VARIABLE]
        with _Trouble(server, asked.port, disk) as trouble:
            soak = [SLIPWAY, "soak", "--url", f"localhost:{asked.port}", "--requests", str(asked.requests)]
            soak += ["--kill-every", str(asked.kill_every), "--seed", str(asked.seed)]
            code = subprocess.run([*soak, "--output", str(asked.output)], check=False).returncode
        problems = [f"slipway soak ended with {code}"] if code else []
        print("  " + ", ".join(f"{count} times {what}" for what, count in sorted(trouble.counts.items())))
        if server.poll() is not None:
            problems.append(f"slipway serve must live, got exit code {server.returncode}")
        elif not _has_watcher(server):
            problems.append(f"the watcher must be started anew, got none after {WATCHER_S} s")
        server.terminate()
        if (ended := server.wait(120)) != 0:
            problems.append(f"slipway serve must stop with 0, got {ended}")
        left = [*process_ids(server_id), *shared_memory_regions(server_id)]
        if left:
            problems.append(f"no process and no shared memory may be left, got {left}")
    for problem in problems:
        print(f"chaos: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repository", type=Path, required=True, help="model repository of tiny checkpoints")
    parser.add_argument("--requests", type=int, default=3000, help="number of requests")
    parser.add_argument("--kill-every", type=int, default=75, help="requests between two kills of a model")
    parser.add_argument("--seed", type=int, default=0, help="seed of the requests and the kills")
    parser.add_argument("--port", type=int, default=8001, help="gRPC port; HTTP and metrics take free ones")
    parser.add_argument("--output", type=Path, default=Path("out/chaos"), help="folder of the report")
    return parser


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of 2 MiB at a folder, which only root may do."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def _served(repository: Path, port: int, disk: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Serve a repository, close the reader of the server's stderr, and end the server afterwards."""
    command = [SLIPWAY, "serve", "--repository", str(repository), "--no-progress", "--verbose"]
    command += ["--grpc-port", str(port), "--http-port", "0", "--metrics-port", "0"]
    command += ["--log-file", str(disk / "tritonserver.log")]
    reader, writer = os.pipe()
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    try:
        ready = subprocess.Popen(
            [SLIPWAY, "ready", "--wait-s", "600", "--url", f"localhost:{port}"], stdout=subprocess.DEVNULL
        )
        while ready.poll() is None and server.poll() is None:
            if select.select([reader], [], [], 0.2)[0]:
                os.read(reader, 1 << 16)
        os.close(reader)
        # Another server may listen on the port; its processes must not be killed.
        if ready.poll() != 0 or server.poll() is not None:
            ready.kill()
            raise RuntimeError(f"chaos: the server must become ready on port {port}; try another --port")
        yield server
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


class _Trouble:
    """Thread that fills the disk of the log and kills processes of the server, within its `with` block.

    Args:
        server: The process of `slipway serve`.
        port: Its gRPC port.
        disk: Folder of its log.

    Attributes:
        counts: How often each thing was done.
    """

    def __init__(self, server: subprocess.Popen[bytes], port: int, disk: Path) -> None:
        self._server, self._port, self._filler = server, port, disk / "filler"
        self.counts: Counter[str] = Counter()
        self._done = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> _Trouble:
        self._caused = self._pool.submit(self._cause)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._caused.result()  # a run without trouble must not pass

    def _cause(self) -> None:
        # The soak first asks for the answers that it compares all others with.
        next_kill = time.monotonic() + KILL_EVERY_S
        while not self._done.wait(ROUND_S):
            self._fill()
            if time.monotonic() >= next_kill:
                # Both restart while the disk is full.
                self._kill(WATCHER, _watcher(self._server))
                if self.counts[WATCHER] % 3 == 2:
                    self._kill("tritonserver was killed", tritonserver_at(self._port))
                next_kill = time.monotonic() + KILL_EVERY_S
            self._done.wait(ROUND_S)
            self._filler.unlink()

    def _fill(self) -> None:
        """Write until the disk is full."""
        try:
            with self._filler.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        self.counts["the disk was full"] += 1

    def _kill(self, what: str, process: psutil.Process | None) -> None:
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
                self.counts[what] += 1


def _watcher(server: subprocess.Popen[bytes]) -> psutil.Process | None:
    """Return the watcher process of a server; None if none lives."""
    for child in psutil.Process(server.pid).children():
        with contextlib.suppress(psutil.Error):
            if "slipway_serving.triton.watcher" in child.cmdline():
                return child
    return None


def _has_watcher(server: subprocess.Popen[bytes]) -> bool:
    ends = time.monotonic() + WATCHER_S
    while _watcher(server) is None:
        if time.monotonic() > ends:
            return False
        time.sleep(0.5)
    return True


if __name__ == "__main__":
    raise SystemExit(main())
