"""A Docker engine for the tests: the one that runs, or one that they start and end themselves."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

TARGETS = ("client", "load", "server-cpu", "export")
"""Targets of the Dockerfile that need no GPU."""
ROOT = Path(__file__).resolve().parents[2]
# As a server is meant to run; /tmp may run programs, since Triton's Python backend is laid out there.
CONFINED = (
    *("--read-only", "--tmpfs", "/tmp:exec,mode=1777"),
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
)


def versions() -> dict[str, str]:
    """Return docker/versions.env."""
    lines = (ROOT / "docker/versions.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def image_of(target: str) -> str:
    """Return the tag that docker/build.sh gives a target of the Dockerfile."""
    return f"slipway/{target}:{versions()['SLIPWAY_VERSION']}"


def missing(reason: str) -> NoReturn:
    """Skip the test; fail it in CI, which installs what these tests need."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must have what the Docker tests need: {reason}")
    pytest.skip(reason)


def program(name: str) -> str | None:
    """Return the path of a program, Debian's own before others of the name."""
    return shutil.which(name, path="/usr/bin:/usr/sbin") or shutil.which(name)


def free_ports(count: int) -> list[int]:
    """Return TCP ports that were free just now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def wait_until(condition: Callable[[], object], what: str, limit_s: float = 600.0) -> None:
    """Poll a condition; fail naming it when the time is over."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.1)


@dataclass(frozen=True)
class Engine:
    """The `docker` command, with a configuration folder of its own."""

    docker: str
    config: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment that its commands run in."""
        kept = {
            key: value for key, value in os.environ.items() if key not in ("DOCKER_HOST", "COMPOSE_PROFILES")
        }
        own = {"DOCKER": self.docker, "DOCKER_CONFIG": str(self.config), "DOCKER_BUILDKIT": "1"}
        return {**kept, **own, "PYTHON": sys.executable, **more}

    def run(
        self, *arguments: str | Path, code: int | None = 0, limit_s: float = 600.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a docker command; with a `code` it must exit so."""
        done = subprocess.run(
            [self.docker, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env=self.environment(**environment),
            cwd=ROOT,
        )
        assert code is None or done.returncode == code, f"{arguments} exited {done.returncode}: {done.stderr}"
        return done

    def script(self, *command: str, limit_s: float = 1800.0, **environment: str) -> str:
        """Run a script of docker/ and return what it said."""
        done = subprocess.run(
            [str(ROOT / "docker" / command[0]), *command[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
            env=self.environment(**environment),
            cwd=ROOT,
        )
        assert done.returncode == 0, f"{command} exited {done.returncode}:\n{done.stdout[-4000:]}"
        return done.stdout

    def inspect(self, kind: str, name: str) -> dict[str, Any]:
        """Return what the engine knows of an image, a container or a network."""
        found: dict[str, Any] = json.loads(self.run(kind, "inspect", name).stdout)[0]
        return found

    def answers(self) -> bool:
        """Return whether there is an engine."""
        return self.run("version", code=None).returncode == 0

    def has_image(self, name: str) -> bool:
        """Return whether an image is on this machine."""
        return self.run("image", "inspect", name, code=None).returncode == 0

    @contextlib.contextmanager
    def container(self, name: str, image: str, *arguments: str, options: tuple[str, ...]) -> Iterator[str]:
        """Run a container in the background, removed at the end."""
        try:
            self.run("run", "--detach", "--name", name, *options, image, *arguments)
            yield name
        finally:
            self.run("rm", "--force", "--volumes", name, code=None)

    @contextlib.contextmanager
    def kills(self, container: str) -> Iterator[Callable[[], dict[str, Any]]]:
        """Watch for signals that are sent to a container; yield what waits for the next one."""
        wanted = ("--filter", f"container={container}", "--filter", "event=kill", "--format", "{{json .}}")
        command = [self.docker, "events", "--since", str(int(time.time())), *wanted]
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment())
        assert watching.stdout is not None
        try:
            yield lambda: json.loads(watching.stdout.readline())
        finally:
            watching.kill()
            watching.wait()

    def wait_healthy(self, container: str, limit_s: float = 600.0) -> None:
        """Wait for a container's HEALTHCHECK; fail with its log when it has ended."""

        def healthy() -> bool:
            state = self.inspect("container", container)["State"]
            assert state["Running"], self.run("logs", container).stderr
            return bool(state["Health"]["Status"] == "healthy")

        wait_until(healthy, f"{container} is healthy", limit_s)


@dataclass(frozen=True)
class Served:
    """A server container and how to reach it.

    Attributes:
        container: its name.
        network: a Docker network on which it is called `triton`.
        grpc_url: from this machine.
        http_url: from this machine.
    """

    container: str
    network: str
    grpc_url: str
    http_url: str


@contextlib.contextmanager
def running_engine(folder: Path) -> Iterator[Engine]:
    """Find or start an engine; skip (in CI: fail) where none can be had."""
    docker = program("docker")
    if docker is None:
        missing("no docker command; try apt-get install docker.io")
    engine = Engine(docker, folder / "config")
    engine.config.mkdir(parents=True)
    if engine.answers():
        yield engine
        return
    dockerd = program("dockerd")
    if dockerd is None or os.geteuid() != 0:
        missing("no Docker engine answers; root with dockerd can start one: try apt-get install docker.io")
    with (folder / "dockerd.log").open("wb") as log:
        process = subprocess.Popen([dockerd], stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while not engine.answers():
            if process.poll() is not None or time.monotonic() > deadline:
                missing(f"dockerd does not start here: {(folder / 'dockerd.log').read_text()[-500:]}")
            time.sleep(0.2)
        yield engine
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
