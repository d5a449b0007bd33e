"""Images as promised: who they run as, what they hold, what they leave out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from docker_engine import CONFINED, TARGETS, Engine, versions

PORTS = {"8000/tcp", "8001/tcp", "8002/tcp"}


@pytest.mark.parametrize("target", TARGETS)
def test_image_says_who_and_what_it_is_when_inspected(
    engine: Engine, images: dict[str, str], target: str, shown: Callable[[str], None]
) -> None:
    config = engine.client.images.get(images[target]).attrs["Config"]
    assert config["User"] == "1000:1000"
    assert config["Entrypoint"][0] == "slipway"
    label = "org.opencontainers.image."
    assert config["Labels"][f"{label}title"] == f"slipway/{target}"
    assert config["Labels"][f"{label}version"] == versions()["SLIPWAY_VERSION"]
    assert {f"{label}description", f"{label}licenses", f"{label}revision"} <= set(config["Labels"])
    shown(f"{target}: user {config['User']}, entry point {' '.join(config['Entrypoint'])}")


def test_server_image_has_ports_and_a_health_check_when_inspected(
    engine: Engine, images: dict[str, str], shown: Callable[[str], None]
) -> None:
    config = engine.client.images.get(images["server-cpu"]).attrs["Config"]
    assert set(config["ExposedPorts"]) == PORTS
    assert config["Healthcheck"]["Test"] == ["CMD", "slipway", "ready", "--processes"]
    shown(f"server-cpu: ports {', '.join(sorted(PORTS))}, health check {config['Healthcheck']['Test'][1:]}")


def test_gateway_image_has_a_port_a_health_check_and_a_folder_of_its_user_when_inspected(
    engine: Engine, images: dict[str, str]
) -> None:
    config = engine.client.images.get(images["gateway"]).attrs["Config"]
    assert set(config["ExposedPorts"]) == {"8080/tcp"}
    assert config["Entrypoint"] == ["slipway", "gateway", "--host", "0.0.0.0"]
    assert config["WorkingDir"] == "/data"
    said = engine.run(images["gateway"], "-c", "stat -c '%u %a' /data", entrypoint="sh", **CONFINED).stdout
    assert said.split() == ["1000", "700"]
    # The command of the health check is one that runs: without a gateway it fails by that alone.
    check = engine.run(
        images["gateway"], *config["Healthcheck"]["Test"][2:], code=1, entrypoint="python", **CONFINED
    )
    assert "Connection refused" in check.stderr


def test_client_image_has_no_server_when_looked_into(engine: Engine, images: dict[str, str]) -> None:
    heavy = ("torch", "diffusers", "transformers", "onnxruntime", "pytriton")
    code = f"import importlib.util as u; print(*[n for n in {heavy!r} if u.find_spec(n)])"
    said = {
        target: engine.run(images[target], "-c", code, entrypoint="python").stdout.split()
        for target in ("client", "gateway", "server-cpu")
    }
    assert said == {"client": [], "gateway": [], "server-cpu": list(heavy)}


def test_client_image_has_what_its_commands_import_when_run(engine: Engine, images: dict[str, str]) -> None:
    libraries = "import matplotlib, scipy, soundfile, soxr"
    engine.run(images["client"], "-c", libraries, entrypoint="python", **CONFINED)
    commands = (
        "cd /tmp && slipway imu-recording recording --seconds 1 && ! slipway imu recording --url localhost:1"
        " && ! slipway listen none.wav --plot heard.png --url localhost:1"
    )
    said = engine.run(images["client"], "-c", commands, entrypoint="sh", **CONFINED).stderr.splitlines()
    # Each gets as far as there is no server and no file.
    assert len(said) == 2 and "localhost:1: unavailable" in said[0] and "none.wav" in said[1], said


@pytest.mark.parametrize("target", TARGETS)
def test_image_keeps_no_wheel_no_build_tool_and_no_secret_when_built(
    engine: Engine, images: dict[str, str], target: str
) -> None:
    find = (
        "find /opt /build /src /dist /tmp /root -name '*.whl' -o -name 'pip*' -o -name .git -o -name '*.env'"
    )
    done = engine.run(images[target], "-c", find, code=None, user="0", entrypoint="sh")
    assert [line for line in done.stdout.splitlines() if "/site-packages/" not in line] == []
    environment = engine.client.images.get(images[target]).attrs["Config"]["Env"]
    words = ("token", "secret", "password", "proxy", "index")
    assert not [entry for entry in environment if any(word in entry.lower() for word in words)]


def test_container_cannot_write_its_root_when_run_as_meant(engine: Engine, images: dict[str, str]) -> None:
    command = "touch /models/x; id -u; grep CapEff /proc/self/status; touch /tmp/x && echo can write /tmp"
    done = engine.run(images["server-cpu"], "-c", command, entrypoint="sh", **CONFINED)
    assert "Read-only file system" in done.stderr
    assert done.stdout.split() == ["1000", "CapEff:", "0" * 16, "can", "write", "/tmp"]
