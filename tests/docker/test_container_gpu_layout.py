"""The image for GPUs on a stand-in for NGC's base, with Triton in /opt/tritonserver.

No GPU is used: the stand-in has the Triton of the nvidia-pytriton wheel, and ONNX Runtime for CPUs.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from docker.models.containers import Container
from docker_engine import CONFINED, Engine, ended_of, free_ports, image_of, output_of, wait_until
from installed_triton import install_triton

from slipway_client import Client, Progress, TextToVideoRequest, Video
from slipway_serving.triton.server import Server

REQUEST = TextToVideoRequest(prompt="A serene lake at sunset", frames=5, height=32, width=32, steps=3, seed=7)
PROBES = 8004


@pytest.fixture(scope="module")
def image(
    engine: Engine, base: str, tmp_path_factory: pytest.TempPathFactory, shown: Callable[[str], None]
) -> str:
    """The image server-gpu on the stand-in."""
    folder = tmp_path_factory.mktemp("base")
    install_triton(folder / "tritonserver")
    (folder / "Dockerfile").write_text(f"FROM {base}\nCOPY tritonserver /opt/tritonserver\n")
    engine.client.images.build(path=str(folder), tag="slipway-test/ngc-like", rm=True)
    engine.script(
        "build.sh", "server-gpu", BASE=base, TRITON_BASE="slipway-test/ngc-like", ONNXRUNTIME="onnxruntime"
    )
    shown("server-gpu: built on a base with Triton in /opt/tritonserver, without a GPU")
    return image_of("server-gpu")


class Serving:
    """A container of the image that serves the tiny repository.

    Attributes:
        container: Container that serves.
        url: Address of its gRPC endpoint on this machine.
        probes: URL of its probes on this machine.
    """

    def __init__(self, container: Container, grpc: int, probes: int) -> None:
        self.container, self.url = container, f"127.0.0.1:{grpc}"
        self.probes = f"http://127.0.0.1:{probes}"

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.probes}/ready", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


@pytest.fixture(scope="module")
def serving(engine: Engine, image: str, repository: Path) -> Iterator[Serving]:
    grpc, probes = free_ports(2)
    options = {
        **CONFINED,
        "volumes": [f"{repository}:/models:ro"],
        "ports": {"8001/tcp": ("127.0.0.1", grpc), f"{PROBES}/tcp": ("127.0.0.1", probes)},
    }
    arguments = ("--probe-port", str(PROBES), "--exit-timeout-s", "60")
    with engine.container(image, *arguments, **options) as container:
        engine.wait_healthy(container)
        yield Serving(container, grpc, probes)


def test_image_serves_with_the_bases_own_triton_what_slipway_serve_serves(
    serving: Serving, server: Server, shown: Callable[[str], None]
) -> None:
    def video(url: str) -> bytes:
        with Client(url) as client:
            return next(event for event in client.generate(REQUEST) if isinstance(event, Video)).data

    assert b" in /opt/tritonserver; " in serving.container.logs(stderr=False)
    assert video(serving.url) == video(server.grpc_url)
    assert b"restricted" not in output_of(serving.container, "cat", "/proc/1/cmdline").encode()
    shown("server-gpu: the same video, byte for byte, as of `slipway serve` on this machine")


def test_model_whose_process_is_killed_serves_again(serving: Serving, shown: Callable[[str], None]) -> None:
    assert serving.is_ready()
    find = "import psutil; print(*[p.pid for p in psutil.process_iter() if 'stub' in p.name()])"
    before = output_of(serving.container, "python3", "-c", find).split()
    output_of(serving.container, "python3", "-c", f"import os; os.kill({before[0]}, {int(signal.SIGKILL)})")
    wait_until(lambda: b"model_restarted" in serving.container.logs(), "the model is started again")
    wait_until(serving.is_ready, "the server is ready again")
    shown("server-gpu: a model whose process was killed serves again")


def test_server_finishes_a_video_that_is_being_made_when_it_is_stopped(
    serving: Serving, shown: Callable[[str], None]
) -> None:
    with Client(serving.url) as client:
        events = client.generate(REQUEST)
        assert any(isinstance(event, Progress) for event in events)
        stopping = threading.Thread(target=serving.container.stop, kwargs={"timeout": 70})
        stopping.start()
        assert any(isinstance(event, Video) for event in events)
        stopping.join()
    assert ended_of(serving.container).code == 0
    shown("server-gpu: stopped during a video, which was finished; exit code 0")


def test_image_names_the_mount_when_no_repository_was_mounted(engine: Engine, image: str) -> None:
    done = engine.run(image, code=None, **CONFINED)
    assert done.code != 0
    assert "server: repository must contain a model, got the empty folder /models" in done.stderr
