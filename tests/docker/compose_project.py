"""The default profile of compose.yaml, brought up under a name and on ports of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
from docker.models.containers import Container
from docker_engine import Engine, free_ports

_PORTS = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT", "GATEWAY_PORT", "PROMETHEUS_PORT")


@dataclass(frozen=True)
class Project:
    """The running default profile.

    Attributes:
        engine: Engine that runs it.
        environment: Variables that Compose reads: the project's name and its ports.
    """

    engine: Engine
    environment: dict[str, str]

    def compose(self, *arguments: str, code: int | None = 0) -> str:
        """Run a command of Compose on this project and return its output."""
        return self.engine.compose(*arguments, code=code, limit_s=1800, **self.environment).stdout

    def service(self, name: str) -> Container:
        """Return the container of a service."""
        return self.engine.client.containers.get(self.compose("ps", "--all", "--quiet", name).strip())

    def ask_prometheus(self, path: str, **query: str) -> Any:
        """Return the data that Prometheus' API answers."""
        url = f"http://127.0.0.1:{self.environment['PROMETHEUS_PORT']}/api/v1/{path}"
        return httpx.get(url, params=query, trust_env=False).raise_for_status().json()["data"]

    def query(self, expression: str) -> list[float]:
        """Return the values of an expression."""
        found = self.ask_prometheus("query", query=expression)["result"]
        return [float(sample["value"][1]) for sample in found]


@contextlib.contextmanager
def running_project(compose: Engine, prometheus_image: str, name: str) -> Iterator[Project]:
    """Run `docker compose up --detach`, and remove everything at the end."""
    ports = dict(zip(_PORTS, map(str, free_ports(len(_PORTS))), strict=True))
    own = {
        "COMPOSE_PROJECT_NAME": f"slipway-test-{name}-{os.getpid()}",
        "PROMETHEUS_IMAGE": prometheus_image,
    }
    project = Project(compose, {**own, **ports})
    try:
        project.compose("up", "--detach", "--no-build")
        yield project
    finally:
        project.compose("--profile", "*", "down", "--volumes", "--timeout", "5", code=None)
