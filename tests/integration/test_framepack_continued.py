"""Videos of `framepack_i2v` that another client continues after frames of earlier sections were delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from framepack_fixtures import small_repository

from slipway_client import (
    AsyncClient,
    Client,
    Continued,
    Frames,
    ImageToVideoRequest,
    Stopped,
    Video,
    continued_request,
    read_state_file,
    write_state,
)
from slipway_client.states import split_state
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

PICTURE = np.random.default_rng(3).integers(0, 256, (8, 12, 3), np.uint8).repeat(8, 0).repeat(8, 1)
REQUEST = ImageToVideoRequest(
    image=PICTURE, prompt="A paper boat sails down a rainy street.", height=32, width=48, steps=2, seed=7
)
Protocol = Literal["grpc", "http"]


@pytest.fixture(scope="module")
def server(shared: Path) -> Iterator[Server]:
    repository, _ = small_repository(shared)
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


def connect(server: Server, protocol: Protocol) -> Client:
    return Client(server.grpc_url if protocol == "grpc" else server.http_url, protocol)


async def last_of(server: Server, protocol: Protocol, request: ImageToVideoRequest) -> Any:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    async with AsyncClient(url, protocol) as client:
        return [event async for event in client.generate(request)][-1]


# The first section of two in inverted order has no frames that are final, so no part of a file.
@pytest.mark.parametrize(
    ("order", "seconds", "stop"), [("forward", 2.4, 3), ("inverted", 2.4, 3), ("inverted", 3.6, 5)]
)
@pytest.mark.parametrize("output", ["video", "frames"])
@pytest.mark.parametrize(("first", "second"), [("grpc", "http"), ("http", "grpc")])
def test_result_is_equal_when_another_client_continues_it_over_the_other_protocol(
    server: Server, tmp_path: Path, order: str, seconds: float, stop: int, output: str,
    first: Protocol, second: Protocol,
) -> None:  # fmt: skip
    request = replace(REQUEST, order=order, seconds=seconds, output=output)
    with connect(server, first) as client:
        *_, whole = client.generate(request)
        *_, stopped = client.generate(replace(request, stop_after_step=stop))
    assert isinstance(stopped, Stopped)
    assert stopped.state is not None
    path = tmp_path / "boat.slipway"
    write_state(path, stopped.state)
    state = read_state_file(path)
    assert bool(split_state(state, "here")[1]) == ((output, seconds, order) != ("video", 2.4, "inverted"))
    rest = continued_request(ImageToVideoRequest, state, output=output)
    with connect(server, second) as other:
        events = list(other.generate(rest))
    assert [event.continued_step for event in events if isinstance(event, Continued)] == [stop]
    for result in (events[-1], asyncio.run(last_of(server, second, rest))):
        if output == "video":
            assert isinstance(result, Video)
            assert result.data == whole.data
        else:
            assert isinstance(result, Frames)
            np.testing.assert_array_equal(result.array, whole.array)
