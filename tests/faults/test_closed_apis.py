"""Administration is closed by default, to orders without the key and to eyes on the command line."""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest
import tritonclient.grpc as triton

from slipway_serving.protocol.errors import NotReady
from slipway_serving.system.server_processes import process_ids
from slipway_serving.triton.arguments import RESTRICTED_APIS
from slipway_serving.triton.control import CONTROL_HEADER, ModelControl, read_token
from slipway_serving.triton.server import Server

pytestmark = pytest.mark.usefixtures("health")

PATHS = {
    "model-repository": ("POST", "/v2/repository/index"),
    "shared-memory": ("GET", "/v2/systemsharedmemory/status"),
    "trace": ("GET", "/v2/trace/setting"),
    "logging": ("GET", "/v2/logging"),
}


def test_every_closed_api_is_tried_here() -> None:
    assert set(PATHS) == set(RESTRICTED_APIS)


@pytest.mark.parametrize("group", PATHS)
def test_api_that_changes_the_server_needs_the_servers_own_key_over_http(cheap: Server, group: str) -> None:
    method, path = PATHS[group]

    def ask(headers: dict[str, str]) -> int:
        url = f"http://{cheap.http_url}{path}"
        return httpx.request(method, url, headers=headers, trust_env=False).status_code

    assert [ask({}), ask({CONTROL_HEADER: ""}), ask({CONTROL_HEADER: "another-token-of-16"})] == [403] * 3
    assert ask({CONTROL_HEADER: cheap.control_token}) == 200


@pytest.mark.parametrize("group", PATHS)
def test_api_that_changes_the_server_needs_the_servers_own_key_over_grpc(cheap: Server, group: str) -> None:
    with triton.InferenceServerClient(cheap.grpc_url) as client:
        ask: Callable[..., Any] = {
            "model-repository": client.get_model_repository_index,
            "shared-memory": client.get_system_shared_memory_status,
            "trace": client.get_trace_settings,
            "logging": client.get_log_settings,
        }[group]
        for headers in ({}, {f"triton-grpc-protocol-{CONTROL_HEADER}": "another-token-of-16"}):
            with pytest.raises(triton.InferenceServerException, match="restricted"):
                ask(headers=headers)
        assert ask(headers={f"triton-grpc-protocol-{CONTROL_HEADER}": cheap.control_token}) is not None


def test_orders_are_taken_with_the_key_from_the_servers_file(cheap: Server) -> None:
    with pytest.raises(NotReady, match="try the server's --control-token-file"):
        ModelControl(cheap.http_url).load("affine")
    assert cheap.control_token_file is not None
    token = read_token(cheap.control_token_file)
    assert token == cheap.control_token
    ModelControl(cheap.http_url, token).load("affine")


def test_key_is_for_its_user_alone(cheap: Server) -> None:
    file = cheap.control_token_file
    assert file is not None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_key_is_on_no_command_line_and_in_no_log(cheap: Server) -> None:
    pids = process_ids(cheap.server_id)
    assert cheap.pid in pids
    lines = [" ".join(psutil.Process(pid).cmdline()) for pid in pids]
    assert any("--http-restricted-api=(" in line for line in lines)
    assert not [line for line in lines if cheap.control_token in line]
    assert cheap.control_token not in cheap.log_text()
