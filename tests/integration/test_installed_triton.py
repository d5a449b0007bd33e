"""A Triton in the layout of NGC's images: it is found, serves, heals and stops as that of the wheel does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from installed_triton import install_triton
from server_fixtures import (
    affine,
    any_port,
    infer,
    nothing_is_left,
    tensor,
    wait_until,
    write_model,
    write_sleeper,
)

from slipway_client import Client, TextToVideoRequest, Video
from slipway_serving.protocol.errors import NotReady
from slipway_serving.system.server_processes import stubs
from slipway_serving.triton.server import Server
from slipway_serving.triton.termination import models_inside

pytestmark = pytest.mark.long

CONFIG = "max_batch_size: 8\n" + tensor("input", "x", "FP32", "[4]") + tensor("output", "y", "FP32", "[4]")
ONES = np.ones((1, 4), np.float32)
REQUEST = TextToVideoRequest(prompt="A serene lake at sunset", frames=5, height=32, width=32, steps=2, seed=7)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_triton(tmp_path_factory.mktemp("ngc") / "tritonserver")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository of a graph and a Python model."""
    write_model(tmp_path / "models", "affine", affine(), CONFIG)
    write_sleeper(tmp_path / "models")
    return tmp_path / "models"


@pytest.fixture
def serving(installed: Path, small: Path) -> Iterator[Server]:
    with Server(any_port(small, triton_dir=installed)) as server:
        yield server


def test_video_is_the_same_as_from_the_triton_of_the_wheel(
    installed: Path, repository: Path, server: Server
) -> None:
    def video(url: str) -> bytes:
        with Client(url) as client:
            return next(event for event in client.generate(REQUEST) if isinstance(event, Video)).data

    with Server(any_port(repository, triton_dir=installed)) as other:
        assert f" in {installed}; " in other.triton
        assert video(other.grpc_url) == video(server.grpc_url)


def test_model_and_server_serve_again_when_their_processes_are_killed(serving: Server) -> None:
    def answers() -> bool:
        try:
            with triton.InferenceServerClient(serving.grpc_url) as client:
                np.testing.assert_array_equal(infer(client, "affine", x=ONES)["y"], 2 * ONES + 1)
                infer(client, "sleeper", seconds=np.zeros(1, np.float32))
        except triton.InferenceServerException:
            return False
        return True

    assert answers()
    assert serving.pid is not None
    (sleeper,) = (pid for pid, model in stubs(serving.pid).items() if model == "sleeper")
    os.kill(sleeper, signal.SIGKILL)
    wait_until(lambda: "model_restarted" in serving.log_text(), "the model is started again")
    wait_until(answers, "answers after the death of a model")
    os.kill(serving.pid, signal.SIGKILL)
    wait_until(lambda: "server_restarted" in serving.log_text(), "the server is started again")
    wait_until(answers, "answers after the death of the server")


def test_models_of_a_backend_that_is_a_library_are_waited_for_at_the_stop(serving: Server) -> None:
    resources = serving._resources
    assert resources is not None
    # The wheel has no C++ backend, so the value is given here. The graph's backend runs in processes whatever
    # its name, as its configuration in Triton says.
    assert models_inside(replace(resources, library_backends=["onnxruntime", "python"])) == {"sleeper"}
    assert models_inside(resources) == set()


def test_nothing_is_left_when_it_stops(installed: Path, small: Path) -> None:
    with Server(any_port(small, triton_dir=installed)) as server:
        assert server.models() == ["affine", "sleeper"]
    assert nothing_is_left(server.server_id)


def test_serve_says_which_triton_it_starts_and_refuses_one_that_lacks_something(
    installed: Path, small: Path, tmp_path: Path
) -> None:
    def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
        ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
        command = [sys.executable, "-m", "slipway_cli.root", "serve", "--repository", str(small), *ports]
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, timeout=300
        )

    bare = tmp_path / "bare"
    (bare / "bin").mkdir(parents=True)
    (bare / "TRITON_VERSION").write_text("2.73.0")
    done = serve("--triton-dir", str(bare))
    assert (done.returncode, done.stdout) == (1, "")
    assert "server: triton-dir must contain bin/tritonserver, got none in" in done.stderr
    done = serve("--triton-dir", str(installed), "--onnxruntime-backend", "native")
    assert done.returncode == 1
    assert "onnxruntime-backend must be python with the Triton in" in done.stderr


def test_start_names_what_a_folder_lacks(small: Path, tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="triton-dir must contain bin/tritonserver, got none in"):
        Server(any_port(small, triton_dir=tmp_path)).start()
