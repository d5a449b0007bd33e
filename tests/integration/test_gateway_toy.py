"""A family of another distribution behind a gateway, which has no line about it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gateway_fixtures import Gateway, mp4_frames, running_gateway
from PIL import Image
from toy_fixtures import PICTURE, installed_toy, toy_repository

from slipway_client import Client
from slipway_client.results import Frames
from slipway_serving.triton.server import Server, ServerConfig
from slipway_serving.video.mp4 import Mp4Encoder


def png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(PICTURE).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def toy(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Gateway]]:
    with installed_toy(tmp_path_factory.mktemp("toy")):
        config = ServerConfig(toy_repository(shared), http_port=0, grpc_port=0, metrics_port=0)
        with (
            Server(config) as server,
            running_gateway([server.grpc_url], tmp_path_factory.mktemp("gateway")) as gateway,
        ):
            yield server, gateway


def test_form_of_a_model_is_described_when_its_family_is_elsewhere(toy: tuple[Server, Gateway]) -> None:
    described = toy[1].http.get("/v1/models/toy_video").json()["video"]
    fields = {field["name"]: field for field in described["fields"]}
    assert described["family"] == "toy"
    assert fields["input_reference"]["required"]
    assert (fields["blocks"]["default"], fields["blocks"]["type"]) == (3, "integer")
    body = toy[1].http.get("/openapi.json").json()["paths"]["/v1/videos"]["post"]["requestBody"]
    assert "blocks" in body["content"]["application/json"]["schema"]["properties"]


@pytest.mark.parametrize("sent", ["file", "data URL", "object"])
def test_frames_become_a_file_when_the_model_makes_none(toy: tuple[Server, Gateway], sent: str) -> None:
    server, gateway = toy
    fields = {"blocks": "2", "seed": str(["file", "data URL", "object"].index(sent))}
    url = "data:image/png;base64," + base64.b64encode(png()).decode()
    if sent == "file":
        answer = gateway.http.post("/v1/videos", data=fields, files={"input_reference": ("a.png", png())})
    else:
        picture = url if sent == "data URL" else {"image_url": url}
        answer = gateway.http.post("/v1/videos", json={**fields, "input_reference": picture})
    assert answer.status_code == 200, answer.text
    done = gateway.until(answer.json()["id"])
    assert (done["status"], done["model"]) == ("completed", "toy_video"), done
    from slipway_toy.video_request import ToyVideoRequest

    request = ToyVideoRequest(image=PICTURE, blocks=2, seed=int(fields["seed"]))
    with Client(server.grpc_url) as client:
        (expected,) = (event.array for event in client.generate(request) if isinstance(event, Frames))
    with Mp4Encoder(expected.shape[2], expected.shape[1], 16) as encoder:
        encoder.add(expected)
        direct = encoder.finish()
    np.testing.assert_array_equal(mp4_frames(gateway.content(done["id"])), mp4_frames(direct))


def test_picture_of_a_variation_is_that_of_its_job(toy: tuple[Server, Gateway]) -> None:
    _, gateway = toy
    files = {"input_reference": ("a.png", png())}
    job = gateway.http.post("/v1/videos", data={"blocks": "1", "seed": "9"}, files=files).json()
    gateway.until(job["id"])
    remixed = gateway.http.post(f"/v1/videos/{job['id']}/remix", json={"blocks": 2}).json()
    done = gateway.until(remixed["id"])
    assert (done["status"], done["request"]["image"], done["seed"]) == ("completed", {"content": "input"}, 9)
    assert gateway.content(done["id"], "input") == png()


def test_picture_is_refused_by_name_when_it_cannot_be_used(toy: tuple[Server, Gateway]) -> None:
    _, gateway = toy
    for picture in ("http://127.0.0.1:1/a.png", "http://localhost/a.png", "file:///etc/passwd", "data:,x", 3):
        document = {"model": "toy_video", "input_reference": picture}
        status, error = gateway.error("POST", "/v1/videos", json=document)
        assert (status, error["param"]) == (400, "input_reference"), (picture, error)
    status, error = gateway.error("POST", "/v1/videos", json={"model": "toy_video"})
    assert (status, error["param"]) == (400, "input_reference")
