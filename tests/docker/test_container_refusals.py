"""Bad input to a container: each a clear message and an exit code, and no restart loop's riddle."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docker_engine import CONFINED, Engine, Served

OUTCOME = Callable[..., str]


@pytest.fixture
def refused(engine: Engine, images: dict[str, str], shown: Callable[[str], None]) -> OUTCOME:
    """Runs an image that must end with a code; returns what it said on stderr."""

    def run(what: str, code: int, *arguments: str, target: str = "server-cpu", **options: Any) -> str:
        done = engine.run(images[target], *arguments, code=code, **{**CONFINED, **options})
        # A server's own log comes before.
        said = done.stderr[max(done.stderr.rfind("error: "), 0) :]
        shown(f"refused, {what}: exit {code}, {' '.join(said.split())[:240]}")
        assert "Traceback" not in said
        return said

    return run


@pytest.fixture
def models(repository: Path, tmp_path: Path) -> Path:
    """A copy of one model of the repository, to be broken, in a folder that the container's user can read."""
    shutil.copytree(repository / "wan_t2v_text_encoder", tmp_path / "models/wan_t2v_text_encoder")
    tmp_path.chmod(0o755)
    return tmp_path / "models"


def test_server_names_the_path_when_the_repository_is_wrong(refused: OUTCOME) -> None:
    said = refused("wrong repository path", 2, "--repository", "/nowhere")
    assert said.startswith("error: server: repository must exist, got /nowhere")


def test_server_names_the_mount_when_no_repository_was_mounted(refused: OUTCOME) -> None:
    assert "repository must contain a model, got the empty folder /models" in refused("nothing mounted", 2)


def test_server_names_the_port_when_it_is_in_use(refused: OUTCOME, served: Served, repository: Path) -> None:
    network, volumes = f"container:{served.container.id}", [f"{repository}:/models:ro"]
    said = refused("port in use", 2, network_mode=network, volumes=volumes)
    assert "http_port must be free on 0.0.0.0, got 8000 (Address already in use)" in said


def test_server_names_the_model_when_its_file_is_missing(refused: OUTCOME, models: Path) -> None:
    (models / "wan_t2v_text_encoder/1/model.onnx").unlink()
    said = refused("missing model file", 1, volumes=[f"{models}:/models:ro"])
    assert "server: 1 model(s) failed to load:\n  wan_t2v_text_encoder: " in said and "model.onnx" in said


def test_server_names_what_it_needs_when_shared_memory_is_small(refused: OUTCOME, models: Path) -> None:
    for number in range(26):
        (models / f"word_{number}").mkdir()
    volumes = [f"{models}:/models:ro"]
    said = refused("64 MB of shared memory for 27 models", 1, volumes=volumes, shm_size="64m")
    assert "/dev/shm must have 86 MiB free for 27 models, got 64 MiB; try `docker run --shm-size=1g`" in said


def test_server_names_the_mount_when_programs_may_not_run_in_tmp(refused: OUTCOME, models: Path) -> None:
    said = refused("noexec /tmp", 1, volumes=[f"{models}:/models:ro"], tmpfs={"/tmp": "noexec"})
    assert "got a noexec mount; try" in said and "--tmpfs /tmp:exec" in said


def test_export_names_the_repository_when_it_is_read_only(refused: OUTCOME, models: Path) -> None:
    arguments = ("export", "wan_t2v", "--checkpoint", "tiny", "--repository", "/store/models")
    options = {"volumes": [f"{models.parent}:/store:ro"], "network_mode": "none"}
    said = refused("read-only repository", 2, *arguments, target="export", **options)
    assert "repository must be a folder that can be written" in said
