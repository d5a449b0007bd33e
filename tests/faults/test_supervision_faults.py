"""`slipway serve` looks after its server though nobody takes what it says; the next start ends leftovers."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from healing import ONES, server_id_of, write_affine
from server_fixtures import any_port, infer, wait_until

from slipway_serving.system.server_processes import SHARED_MEMORY, STUB, process_ids, shared_memory_regions
from slipway_serving.triton.server import Server

COMMAND = (sys.executable, "-m", "slipway_cli.root", "serve")
PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_affine(tmp_path / "models")
    return tmp_path / "models"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB of its own, which a test may fill."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


class Serving:
    """A running `slipway serve`.

    Args:
        arguments: Arguments of the command beside the ports.
        redirection: Redirection of its streams, as a shell writes it.
        environment: Variables that it gets beside those of this process.
    """

    def __init__(self, *arguments: str, redirection: str = "", **environment: str) -> None:
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" {redirection}', "bash", *COMMAND, *PORTS, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
        )
        assert self.process.stdout is not None
        said = ""
        while not said.endswith("ready\n"):
            line = self.process.stdout.readline()
            assert line, f"ended before it was ready: {said} {self.process.communicate()}"
            said += line
        self.grpc_url = re.search(r"^grpc +(\S+)$", said, re.MULTILINE)[1]  # type: ignore[index]

    def close_streams(self) -> None:
        """Read no more of what the command says, as `| head` does."""
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _below(self, is_one: Callable[[psutil.Process], bool]) -> set[int]:
        found = set()
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if child.status() != psutil.STATUS_ZOMBIE and is_one(child):
                    found.add(child.pid)
        return found

    def stubs(self) -> set[int]:
        return self._below(lambda process: STUB.startswith(process.name()))

    def tritonservers(self) -> set[int]:
        return self._below(lambda process: process.name() == "tritonserver")

    def watchers(self) -> set[int]:
        return self._below(lambda process: "slipway_serving.triton.watcher" in process.cmdline())

    def assert_answers(self) -> None:
        """Wait until the model answers, and check the answer."""
        got: list[np.ndarray] = []

        def answered() -> bool:
            with (
                contextlib.suppress(triton.InferenceServerException),
                triton.InferenceServerClient(self.grpc_url) as client,
            ):
                got.append(infer(client, "affine", x=ONES)["y"])
            return bool(got)

        wait_until(answered, "an answer")
        np.testing.assert_array_equal(got[0], 2 * ONES + 1)

    def assert_heals(self) -> None:
        """Kill the model's process, the watcher and `tritonserver`: each is started anew."""
        for find in (self.stubs, self.watchers, self.tritonservers):
            (before,) = find()
            os.kill(before, signal.SIGKILL)
            wait_until(lambda find=find, before=before: len(find() - {before}) == 1, f"other {find.__name__}")
            self.assert_answers()

    @property
    def server_id(self) -> str:
        """The id of the server, from its shared memory."""
        return server_id_of(self.process.pid)

    def kill(self) -> None:
        """Kill the command and its watcher so that nobody ends what they leave."""
        self.process.send_signal(signal.SIGSTOP)  # or it would start another watcher
        for pid in self.watchers():
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(300)


def left(server_id: str, temporary: Path) -> list[object]:
    """Return what is left of a server: processes, shared memory, folders; the log of a killed one stays."""
    places = (temporary, SHARED_MEMORY)
    folders = {path for place in places for path in place.glob(f"{server_id}*/")} - {
        temporary / f"{server_id}log"
    }
    return [*process_ids(server_id), *shared_memory_regions(server_id), *folders]


@pytest.mark.parametrize(("flag", "redirection"), [("--progress", ""), ("--verbose", "2>&-")])
def test_serve_heals_when_neither_its_log_nor_its_streams_can_be_written(
    repository: Path, tmp_path: Path, flag: str, redirection: str
) -> None:
    """With `2>&-` the command begins without standard error."""
    log = tmp_path / "log" / "triton.log"
    log.parent.mkdir()
    arguments = (f"--repository={repository}", f"--log-file={log}", flag)
    with Serving(*arguments, redirection=redirection, TMPDIR=str(tmp_path)) as serving:
        server_id = serving.server_id
        shutil.rmtree(log.parent)
        serving.close_streams()
        serving.assert_heals()
        serving.process.terminate()
        assert serving.process.wait(300) == 0
    assert left(server_id, tmp_path) == []


def test_serve_heals_when_the_disk_of_its_log_and_folder_is_full(
    repository: Path, tmp_path: Path, small_disk: Path
) -> None:
    with Serving(f"--repository={repository}", "--verbose", TMPDIR=str(small_disk)) as serving:
        serving.close_streams()
        server_id = serving.server_id
        with pytest.raises(OSError, match="No space left"), (small_disk / "filler").open("wb", 0) as filler:
            while True:
                filler.write(bytes(4096))
        assert shutil.disk_usage(small_disk).free == 0
        serving.assert_heals()
        serving.process.terminate()
        assert serving.process.wait(300) == 0
    assert left(server_id, small_disk) == []


def test_next_start_ends_what_a_killed_server_left_and_no_living_one(
    repository: Path, tmp_path: Path
) -> None:
    arguments = (f"--repository={repository}", "--exit-timeout-s=1")
    with (
        Serving(*arguments, TMPDIR=str(tmp_path)) as living,
        Serving(*arguments, TMPDIR=str(tmp_path)) as dead,
    ):
        server_id = dead.server_id
        dead.kill()
        # Where tests run side by side, the start of another one's server may end the leftovers too.
        with Server(any_port(repository)):
            assert left(server_id, tmp_path) == []
        living.assert_answers()
