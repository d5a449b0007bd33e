"""Starts of the embedded server that end soon or are refused, and paths that a shell would take apart."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from server_fixtures import ODD, affine, any_port, infer, mode, nothing_is_left, tensor, write_model

from slipway_cli import root
from slipway_client import Client
from slipway_serving.protocol.errors import InvalidRequest, NotReady
from slipway_serving.system import server_processes
from slipway_serving.triton.install.setup import TritonSetup
from slipway_serving.triton.server import Server

CONFIG = "max_batch_size: 8\n" + tensor("input", "x", "FP32", "[4]") + tensor("output", "y", "FP32", "[4]")
ONES = np.ones((1, 4), np.float32)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one model."""
    write_model(tmp_path / "models", "affine", affine(), CONFIG)
    return tmp_path / "models"


ENDING = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"


def test_start_fails_soon_when_a_process_of_a_model_ends_at_once(repository: Path) -> None:
    """Triton 2.51 waits for such a process until the time to load is over, which is longer than a test's."""
    write_model(repository, "ending", None, CONFIG, backend="python").joinpath("model.py").write_text(ENDING)
    server = Server(any_port(repository, ready_timeout_s=1e6))
    with pytest.raises(NotReady) as caught:
        server.start()
    assert str(caught.value).startswith(
        "server: a model's process ended at its start (killed by SIGKILL); still loading: ending"
    )
    shutil.rmtree(server.log_path.parent)
    assert nothing_is_left(server.server_id)


@pytest.mark.python_graphs
def test_start_fails_with_the_words_of_a_process_that_cannot_be_executed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out = TritonSetup.lay_out

    def lay_out_broken(setup: TritonSetup, folder: Path, base: Mapping[str, str]) -> None:
        lay_out(setup, folder, base)
        (folder / "backends/python" / server_processes.STUB).write_text(
            "#!/bin/sh\necho no library; exit 127\n"
        )

    monkeypatch.setattr(TritonSetup, "lay_out", lay_out_broken)
    server = Server(any_port(repository, ready_timeout_s=1e6))
    with pytest.raises(NotReady, match=r"\(exit code 127\); still loading: affine\n  no library\n"):
        server.start()
    shutil.rmtree(server.log_path.parent)


ADAPTED = """
import locale
import triton_python_backend_utils as pb_utils
from slipway_serving.adapter import model_class

assert locale.getpreferredencoding() == "UTF-8"
TritonPythonModel = model_class(pb_utils)
"""


def test_models_are_served_when_paths_have_characters_that_a_shell_heeds(
    repository: Path, tmp_path: Path
) -> None:
    (tmp_path / ODD).mkdir()
    odd = repository.rename(tmp_path / ODD / "models")
    config = tensor("input", "x", "FP32", "[4]") + tensor("output", "y", "FP32", "[4]")
    program = 'parameters { key: "program" value { string_value: "same:Same" } }\n'
    version = write_model(odd, "same", None, config + program, backend="python")
    (version / "model.py").write_text(ADAPTED)
    (version / "same.py").write_text(SAME)
    limits, log, trace = (tmp_path / ODD / name for name in ("limits.yaml", "log", "trace"))
    limits.write_text("same: {x: 4}\n")
    traced = (
        "--trace-config=rate=1",
        "--trace-config=level=TIMESTAMPS",
        f"--trace-config=triton,file={trace}",
    )
    config_of_server = any_port(odd, limits=limits, log_path=log, arguments=traced, ready_timeout_s=1e6)
    with Server(config_of_server) as server, triton.InferenceServerClient(server.grpc_url) as client:
        assert server.models() == ["affine", "same"]
        np.testing.assert_array_equal(infer(client, "affine", x=ONES)["y"], 2 * ONES + 1)
        np.testing.assert_array_equal(infer(client, "same", x=ONES[0])["y"], ONES[0])
    assert {path: mode(path) for path in (log, trace)} == {log: 0o600, trace: 0o600}
    assert not list(tmp_path.rglob("RAN"))


SAME = """
class Same:
    reports_requests = False

    def __init__(self, settings):
        pass

    def run(self, call):
        yield {"y": call.tensors["x"]}

    def close(self):
        pass
"""


def test_start_is_refused_when_a_shell_would_heed_what_triton_hands_to_it(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("two words", "$(touch RAN)", "é"):
        (repository / name).mkdir()
    with pytest.raises(InvalidRequest) as caught:
        Server(any_port(repository)).start()
    text = str(caught.value)
    rule = "name of a model must have only characters of A-Z a-z 0-9 . _ - + , @ %"
    assert text.count(rule) == 3
    assert f"got 'two words'; try another name for the folder {repository / 'two words'}" in text
    for name in ("two words", "$(touch RAN)", "é"):
        (repository / name).rmdir()
    temporary = tmp_path / "$(touch RAN)"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(NotReady, match=r"the path of the temporary folder .* got '.*\$\(touch RAN\)'; try"):
        Server(any_port(repository)).start()
    assert not list(temporary.iterdir())


def test_start_is_refused_when_the_log_cannot_be_written(repository: Path, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "log"):
        server = Server(any_port(repository, log_path=path))
        with pytest.raises(InvalidRequest, match=f"log must be a file that .* may write, got {path} "):
            server.start()
        assert nothing_is_left(server.server_id)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::", "::1"])
def test_server_is_called_and_asked_over_ipv6(
    repository: Path, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Server(any_port(repository, host=host)) as server:
        for url in (f"http://{server.http_url}", f"grpc://{server.grpc_url}"):
            with Client(url) as client:
                assert client.infer("affine", {"x": ONES})["y"].shape == (1, 4)
        assert root.run(["ready", "--url", f"http://{server.http_url}", "--processes"]) == 0
        assert httpx.get(server.metrics_url, trust_env=False).status_code == httpx.codes.OK
    assert capsys.readouterr().out == "ready\n"
