"""Images, a server container and what was shown with them, made once for all Docker tests.

Everything here is built from this checkout as docs/operate/docker.md says; nothing is pulled. Where the base
image of docker/versions.env is not on this machine, one is made from Debian's packages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from docker_engine import (
    CONFINED,
    ROOT,
    TARGETS,
    Engine,
    Served,
    free_ports,
    image_of,
    missing,
    program,
    running_engine,
    versions,
)

DEBIAN_BASE = "slipway-base:bookworm"
_shown: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.docker)
            # The first one waits for a base, wheels and images.
            item.add_marker(pytest.mark.timeout(1800))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _shown:
        terminalreporter.section("shown with containers")
        for line in _shown:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def shown() -> Callable[[str], None]:
    """Takes a line for the end of the test run: what was seen."""
    return _shown.append


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A Docker engine."""
    with running_engine(tmp_path_factory.mktemp("docker")) as running:
        yield running


@pytest.fixture(scope="session")
def base(engine: Engine) -> str:
    """The base image: the one of docker/versions.env where it is at hand, else one of Debian's packages.

    The wheels are fetched at the same time: one waits for the network, the other for the disk.
    """
    wanted = os.environ.get("BASE", versions()["BASE"])
    have = next((name for name in (wanted, DEBIAN_BASE) if engine.has_image(name)), None)
    if have is None and (os.geteuid() != 0 or program("debootstrap") is None):
        missing(f"no base image: {wanted} is not on this machine, and making one needs root and debootstrap")
    with ThreadPoolExecutor() as pool:
        wheels = pool.submit(engine.script, "wheels.sh")
        if have is None:
            engine.script("base.sh", DEBIAN_BASE)
        wheels.result()
    return have or DEBIAN_BASE


@pytest.fixture(scope="session")
def images(engine: Engine, base: str, shown: Callable[[str], None]) -> dict[str, str]:
    """The images that need no GPU, by target."""
    said = engine.script("build.sh", *TARGETS, BASE=base, EXPORT_BASE="server-cpu")
    for line in said.splitlines():
        if line.startswith("slipway/") and line.endswith(" MB"):
            shown(f"built on {base}: {line}")
    return {target: image_of(target) for target in TARGETS}


@pytest.fixture(scope="session")
def prometheus_image(engine: Engine, base: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian's Prometheus as an image with the official one's entry point."""
    binary = program("prometheus")
    if binary is None:
        missing("no prometheus to make an image of; try apt-get install prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copy(binary, folder / "prometheus")
    (folder / "Dockerfile").write_text(
        f"FROM {base}\nCOPY prometheus /bin/prometheus\n"
        "RUN install --directory --owner 65534 --group 65534 /prometheus\n"
        'USER 65534:65534\nENTRYPOINT ["/bin/prometheus"]\n'
    )
    engine.client.images.build(path=str(folder), tag="slipway-test/prometheus", rm=True)
    return "slipway-test/prometheus"


@pytest.fixture(scope="session")
def compose(engine: Engine) -> Engine:
    """An engine whose docker command has Compose v2."""
    if engine.compose("version", code=None).returncode == 0:
        return engine
    cached = ROOT / "docker/.cache/compose"
    if not (cached / "cli-plugins/docker-compose").exists():
        if program("apt-get") is None or os.geteuid() != 0:
            missing("no Compose v2 in docker; try Docker's docker-compose-plugin package")
        engine.script("compose_plugin.sh", str(cached))
    shutil.copytree(cached, engine.config, dirs_exist_ok=True)
    assert engine.compose("version").stdout.startswith("Docker Compose version")
    return engine


@pytest.fixture(scope="session")
def served(engine: Engine, images: dict[str, str], repository: Path) -> Iterator[Served]:
    """A server-cpu container that serves the tiny repository of this machine, mounted read-only."""
    name = f"slipway-test-{os.getpid()}"
    http, grpc = free_ports(2)
    network = engine.client.networks.create(name)
    known_as = engine.client.api.create_endpoint_config(aliases=["triton"])
    options: dict[str, Any] = {
        **CONFINED,
        "name": name,
        "network": name,
        "networking_config": {name: known_as},
        "volumes": [f"{repository}:/models:ro"],
        "ports": {"8000/tcp": ("127.0.0.1", http), "8001/tcp": ("127.0.0.1", grpc)},
    }
    try:
        with engine.container(images["server-cpu"], **options) as container:
            engine.wait_healthy(container)
            yield Served(container, name, f"127.0.0.1:{grpc}", f"127.0.0.1:{http}")
    finally:
        network.remove()
