"""Orders to a real Triton: load, load anew, unload, refuse, and what a failed load leaves served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper
from server_fixtures import affine, any_port, graph, infer, tensor, wait_until, write_model

from slipway_serving.protocol.errors import NotReady
from slipway_serving.triton.control import ModelControl
from slipway_serving.triton.server import Server

CONFIG = "max_batch_size: 8\n" + tensor("input", "x", "FP32", "[4]") + tensor("output", "y", "FP32", "[4]")
ONES = np.ones((1, 4), np.float32)
TOKEN = "0123456789abcdef"


def shifted() -> onnx.ModelProto:
    """y = x + 5, x [batch, 4]."""
    shape: list[int | str] = ["batch", 4]
    return graph(
        [helper.make_node("Add", ["x", "five"], ["y"])],
        {"x": (TensorProto.FLOAT, shape)},
        {"y": (TensorProto.FLOAT, shape)},
        {"five": np.array(5, np.float32)},
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("control") / "models"
    write_model(folder, "affine", affine(), CONFIG)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    """A server that takes orders, from those who know the token."""
    with Server(any_port(repository, model_control="explicit", control_token=TOKEN)) as running:
        yield running


@pytest.fixture
def control(server: Server) -> ModelControl:
    return ModelControl(server.http_url, TOKEN)


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.grpc_url) as connected:
        yield connected


def test_models_of_the_start_are_served_and_listed_with_the_token(
    server: Server, control: ModelControl
) -> None:
    assert server.models() == ["affine"]
    assert control.ready_models() == {"affine"}


def test_model_that_was_added_is_served_after_an_order_and_not_after_its_removal(
    repository: Path, control: ModelControl, client: triton.InferenceServerClient
) -> None:
    write_model(repository, "added", shifted(), CONFIG)
    assert not client.is_model_ready("added")
    control.sync(repository, "added")
    np.testing.assert_array_equal(infer(client, "added", x=ONES)["y"], ONES + 5)
    (repository / "added").rename(repository.parent / "added")
    control.sync(repository, "added")
    assert control.ready_models() == {"affine"}
    # While it unloads, Triton 2.51 says no.
    wait_until(client.is_server_ready, "the server ready without it")


def test_replaced_model_is_served_anew_and_a_broken_one_leaves_the_old(
    repository: Path, control: ModelControl, client: triton.InferenceServerClient
) -> None:
    file = write_model(repository, "changed", affine(), CONFIG) / "model.onnx"
    control.load("changed")
    np.testing.assert_array_equal(infer(client, "changed", x=ONES)["y"], 2 * ONES + 1)
    file.write_bytes(shifted().SerializeToString())
    control.load("changed")
    np.testing.assert_array_equal(infer(client, "changed", x=ONES)["y"], ONES + 5)
    file.write_bytes(b"not a graph")
    with pytest.raises(NotReady, match="load failed, got .*(must be a graph|parsing failed)") as caught:
        control.load("changed")
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(infer(client, "changed", x=ONES)["y"], ONES + 5)


def test_model_that_is_not_there_is_refused_by_name(control: ModelControl) -> None:
    with pytest.raises(NotReady, match="load failed, got .*absent"):
        control.load("absent")
    control.unload("absent")


@pytest.mark.parametrize("token", [None, "another-token-of-16"])
def test_orders_without_the_token_are_refused_over_http(server: Server, token: str | None) -> None:
    stranger = ModelControl(server.http_url, token)
    with pytest.raises(NotReady, match="try the server's --control-token-file"):
        stranger.load("affine")
    with pytest.raises(NotReady):
        stranger.ready_models()
    assert httpx.get(f"http://{server.http_url}/v2/health/ready", trust_env=False).status_code == 200


def test_orders_without_the_token_are_refused_over_grpc(
    server: Server, client: triton.InferenceServerClient
) -> None:
    with pytest.raises(triton.InferenceServerException, match="restricted"):
        client.unload_model("affine")
    assert client.is_model_ready("affine")


def test_server_without_model_control_says_how_to_allow_it(repository: Path) -> None:
    alone = repository.parent / "alone"
    write_model(alone, "affine", affine(), CONFIG)
    with (
        Server(any_port(alone)) as server,
        pytest.raises(NotReady, match="try `slipway serve --model-control explicit`"),
    ):
        ModelControl(server.http_url, server.control_token).load("affine")
