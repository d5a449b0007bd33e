"""Names from outside stay names: no path is made of one that leads out of its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipway_cli.root import run
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.trained_models import Library
from slipway_serving.protocol.errors import InvalidRequest, NotReady
from slipway_serving.runtime.backends.onnxruntime.session import graph_path
from slipway_serving.triton.control import ModelControl

ESCAPES = (
    "../secret",
    "..",
    "/etc/passwd",
    "a/../../secret",
    "a\0b",
    "..\\secret",
    "~/secret",
    "%2e%2e",
    ".",
    "",
)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file outside of the folders that names are looked for in."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "wake_word_model.pt").write_text("kept")
    return tmp_path / "secret"


@pytest.mark.parametrize("name", ESCAPES)
def test_trained_model_cannot_be_named_outside_of_its_library(
    secret: Path, tmp_path: Path, name: str
) -> None:
    library = Library(tmp_path / "custom")
    for ask in (library.find, library.create, library.status, library.delete_graph):
        with pytest.raises(InvalidRequest):
            ask(name)
    assert (secret / "wake_word_model.pt").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret"]


@pytest.mark.parametrize("shard", [*ESCAPES[:5], 3, None])
def test_index_of_a_checkpoint_cannot_name_a_file_outside_of_its_folder(tmp_path: Path, shard: Any) -> None:
    part = tmp_path / "checkpoint" / "transformer"
    part.mkdir(parents=True)
    index = {"weight_map": {"weight": shard}}
    (part / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidRequest, match="must name files in its own folder, got"):
        Checkpoint(tmp_path / "checkpoint", "c").stored("transformer")


@pytest.mark.parametrize("name", ["../../secret/model.onnx", "/etc/passwd", "../1/model.onnx"])
def test_config_of_a_served_model_cannot_name_a_graph_outside_of_its_folder(
    tmp_path: Path, name: str
) -> None:
    assert graph_path({"default_model_filename": name}, tmp_path / "1").parent == tmp_path / "1"


@pytest.mark.parametrize("model", ["../../../v2/logging", "a/b", "", ".", ".."])
def test_order_to_load_what_is_no_name_is_refused(model: str) -> None:
    with pytest.raises(InvalidRequest, match="model must be a model's name"):
        ModelControl("localhost:1").load(model)


@pytest.mark.parametrize("model", ["a?b", "a#b", "a b", "a%2fb", "a\\b"])
def test_order_to_load_cannot_become_another_request(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    asked: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v2":
            extensions = ["model_repository", "model_configuration", "binary_tensor_data"]
            return httpx.Response(200, json={"name": "triton", "extensions": extensions})
        asked.append(request.url)
        return httpx.Response(400, json={"error": "no"})

    client = httpx.Client
    monkeypatch.setattr(
        "slipway_serving.triton.control.httpx.Client",
        lambda **_: client(transport=httpx.MockTransport(answer)),
    )
    with pytest.raises(NotReady):
        ModelControl("localhost:8000").load(model)
    path = asked[0].raw_path.decode()
    assert path.startswith("/v2/repository/models/")
    assert path.endswith("/load")
    assert path.count("/") == 5


@pytest.mark.parametrize("name", ["../transformer", "..", "/etc", "transformer/.."])
def test_part_of_a_checkpoint_must_be_one_of_the_familys(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["export", "wan_t2v", "--checkpoint", "tiny", "--repository", str(tmp_path / "models")]
    assert run([*asked, "--part", f"{name}={tmp_path}"]) == 2
    assert "part of family wan_t2v must be one of" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
