"""A Docker engine for the tests: the one that runs, or one that they start and end themselves.

The tests use it through Docker's SDK for Python. Compose and the builds of docker/, which need BuildKit, run
the `docker` command.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from docker import DockerClient
from docker.errors import DockerException, ImageNotFound
from docker.models.containers import Container

TARGETS = ("client", "load", "gateway", "server-cpu", "export")
"""Targets of the Dockerfile that need no GPU."""
ROOT = Path(__file__).resolve().parents[2]
# As a server is meant to run; /tmp may run programs, since Triton's Python backend is laid out there.
CONFINED: Mapping[str, Any] = {
    "read_only": True,
    "tmpfs": {"/tmp": "exec,mode=1777"},
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
}
# Largest time that a request to the engine takes, and that a test waits for a container.
_LIMIT_S = 600


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


def wait_until(condition: Callable[[], object], what: str, limit_s: float = _LIMIT_S) -> None:
    """Poll a condition; fail naming it when the time is over."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.1)


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a container that ended."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Engine:
    """A Docker engine, by its SDK, and by the `docker` command for Compose and the scripts of docker/.

    Attributes:
        client: Client of the SDK.
        docker: Path of the `docker` command.
        config: Configuration folder of the `docker` command.
    """

    client: DockerClient
    docker: str
    config: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment that its commands run in."""
        kept = {
            key: value for key, value in os.environ.items() if key not in ("DOCKER_HOST", "COMPOSE_PROFILES")
        }
        own = {"DOCKER": self.docker, "DOCKER_CONFIG": str(self.config), "DOCKER_BUILDKIT": "1"}
        return {**kept, **own, "PYTHON": sys.executable, **more}

    def compose(
        self, *arguments: str, code: int | None = 0, limit_s: float = _LIMIT_S, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Compose; with a `code` it must exit so."""
        done = subprocess.run(
            [self.docker, "compose", *arguments],
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

    def has_image(self, name: str) -> bool:
        """Return whether an image is on this machine."""
        try:
            self.client.images.get(name)
        except ImageNotFound:
            return False
        return True

    @contextlib.contextmanager
    def container(self, image: str, *arguments: str, **options: Any) -> Iterator[Container]:
        """Start a container in the background; remove it at the end.

        Args:
            image: Name of the image.
            arguments: Arguments of its entry point; the image's own where there are none.
            options: Options of the SDK's `containers.create`.
        """
        created = self.client.containers.create(
            image, list(arguments) or None, use_config_proxy=False, **options
        )
        try:
            created.start()
            yield created
        finally:
            created.remove(force=True, v=True)

    def run(self, image: str, *arguments: str, code: int | None = 0, **options: Any) -> Ended:
        """Run a container until it ends; with a `code` it must exit so."""
        with self.container(image, *arguments, **options) as container:
            ended = ended_of(container)
        assert code is None or ended.code == code, f"{arguments} exited {ended.code}: {ended.stderr}"
        return ended

    @contextlib.contextmanager
    def kills(self, container: Container) -> Iterator[Callable[[], dict[str, Any]]]:
        """Watch for signals that are sent to a container; yield what waits for the next one."""
        wanted = {"container": container.id, "event": "kill"}
        events = self.client.events(since=int(time.time()), filters=wanted, decode=True)
        try:
            yield lambda: next(events)
        finally:
            events.close()

    def wait_healthy(self, container: Container, limit_s: float = _LIMIT_S) -> None:
        """Wait for a container's HEALTHCHECK; fail with its log when it has ended."""

        def healthy() -> bool:
            container.reload()
            state = container.attrs["State"]
            assert state["Running"], container.logs(stdout=False).decode()
            return bool(state["Health"]["Status"] == "healthy")

        wait_until(healthy, f"{container.name} is healthy", limit_s)


def ended_of(container: Container) -> Ended:
    """Wait until a container ends."""
    code = container.wait(timeout=_LIMIT_S)["StatusCode"]
    return Ended(code, container.logs(stderr=False).decode(), container.logs(stdout=False).decode())


def output_of(container: Container, *command: str, **options: Any) -> str:
    """Run a command in a running container and return its standard output; it must exit with 0."""
    code, (stdout, stderr) = container.exec_run(list(command), demux=True, **options)
    assert code == 0, f"{command} exited {code}: {stderr}"
    return bytes(stdout or b"").decode()


@dataclass(frozen=True)
class Served:
    """A server container and how to reach it.

    Attributes:
        container: the container itself.
        network: a Docker network on which it is called `triton`.
        grpc_url: from this machine.
        http_url: from this machine.
    """

    container: Container
    network: str
    grpc_url: str
    http_url: str


def connected() -> DockerClient | None:
    """Return a client of the engine at Docker's own socket, or None where none answers."""
    try:
        return DockerClient(timeout=_LIMIT_S)
    except DockerException:
        return None


@contextlib.contextmanager
def running_engine(folder: Path) -> Iterator[Engine]:
    """Find or start an engine; skip (in CI: fail) where none can be had."""
    docker = program("docker")
    if docker is None:
        missing("no docker command; try apt-get install docker.io")
    config = folder / "config"
    config.mkdir(parents=True)
    with contextlib.ExitStack() as started:
        client = connected() or started.enter_context(_daemon(folder / "dockerd.log"))
        started.callback(client.close)
        yield Engine(client, docker, config)


@contextlib.contextmanager
def _daemon(log_path: Path) -> Iterator[DockerClient]:
    """Start dockerd; yield a client of it."""
    dockerd = program("dockerd")
    if dockerd is None or os.geteuid() != 0:
        missing("no Docker engine answers; root with dockerd can start one: try apt-get install docker.io")
    with log_path.open("wb") as log:
        process = subprocess.Popen([dockerd], stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while (client := connected()) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                missing(f"dockerd does not start here: {log_path.read_text()[-500:]}")
            time.sleep(0.2)
        yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
