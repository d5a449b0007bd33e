"""Bytes in the answers of streaming models arrive as they were sent, over each protocol."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import httpx
import pytest
import tritonclient.grpc as triton
from binary_programs import EVERY_BYTE, TEXT_IN_BYTES, Draw, Relay, Sketch
from served_answers import stream
from server_fixtures import any_port

from slipway_client import Client, Video
from slipway_export.repository.config import authored_config
from slipway_serving.triton.server import Server

ADAPTER = """
import triton_python_backend_utils as pb_utils

from slipway_serving.adapter import model_class

TritonPythonModel = model_class(pb_utils)
"""
SKETCH = Sketch(EVERY_BYTE, TEXT_IN_BYTES, "zażółć")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("binary") / "models"
    for request, program in ((Draw, "Drawing"), (Relay, "Relaying")):
        settings = f'parameters {{ key: "program" value {{ string_value: "binary_programs:{program}" }} }}\n'
        text = f'backend: "python"\nmodel_transaction_policy {{ decoupled: true }}\n{settings}'
        version = repository / request.model / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(authored_config(text, request, request.events))
        (version / "model.py").write_text(ADAPTER)
        shutil.copy(Path(__file__).with_name("binary_programs.py"), version)
    with Server(any_port(repository)) as running:
        yield running


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_client_gets_the_bytes_of_an_event_that_it_was_told_nothing_of(
    server: Server, protocol: Literal["grpc", "http"]
) -> None:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    with Client(url, protocol=protocol) as client:
        sketch, video = client.generate(Draw())
        assert sketch == SKETCH
        assert isinstance(video, Video)
        assert video.data == EVERY_BYTE
        # A model that asks another one gets bytes, whatever its own caller speaks.
        assert list(client.generate(Relay())) == [SKETCH]


def test_plain_grpc_client_gets_bytes(server: Server) -> None:
    with triton.InferenceServerClient(server.grpc_url) as client:
        sketch, video = stream(client, "draw", {})
    assert sketch["sketch"].item() == EVERY_BYTE
    assert sketch["more"].item() == TEXT_IN_BYTES
    assert sketch["title"].item() == "zażółć".encode()
    assert video["video"].item() == EVERY_BYTE


@pytest.mark.parametrize("fields", [{}, {"output": "video"}, {"output": "video_base64"}])
def test_plain_http_caller_gets_bytes_as_base64_once(server: Server, fields: dict[str, str]) -> None:
    url = f"http://{server.http_url}/v2/models/draw/generate_stream"
    lines = httpx.post(url, json=fields, timeout=120).text.splitlines()
    sketch, video = (json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:"))
    assert base64.b64decode(sketch["sketch"], validate=True) == EVERY_BYTE
    assert base64.b64decode(sketch["more"], validate=True) == TEXT_IN_BYTES
    assert sketch["title"] == "zażółć"
    assert base64.b64decode(video["video"], validate=True) == EVERY_BYTE
