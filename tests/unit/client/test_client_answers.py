"""Whatever a peer answers, a client gives tensors, events or our errors: :mod:`hostile`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hostile import Answer, answered, grpc_peer, http_peer, metadata_of, once
from hostile_videos import INPUTS, ONCE, REQUEST, X, events_of, streamed, wan_metadata, wan_paths
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from slipway_client import Client
from slipway_serving.protocol.errors import Malformed, SlipwayError

# What is tried here once hung for ever.
pytestmark = pytest.mark.timeout(300)
bounded = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
OUTPUT = st.fixed_dictionaries(
    {
        "name": st.just("y") | JSON,
        "datatype": st.sampled_from(["FP32", "BYTES", "BOOL", "BF16", "INT64", "nothing"]) | JSON,
        "shape": st.lists(st.integers(-2, 2**70), max_size=3) | JSON,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-9, 2**40) | JSON}) | JSON,
    }
)
BODIES = (
    st.binary(max_size=60)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.builds(
        lambda outputs, raw: json.dumps({"outputs": outputs}).encode() + raw,
        st.lists(OUTPUT, max_size=2),
        st.binary(max_size=40),
    )
)
EVENT = st.dictionaries(
    st.sampled_from(
        [
            "step",
            "steps",
            "elapsed_s",
            "video",
            "frames",
            "frames_base64",
            "chunk",
            "chunks",
            "preview",
            "height",
            "width",
            "first_frame",
            "frames_total",
            "part_frames",
            "final",
            "cache_hit_rate",
        ]
    ),
    st.integers(-2, 9) | st.integers() | JSON,
    max_size=12,
)


class Script:
    """An answer that each example of a property replaces."""

    def __init__(self) -> None:
        self.data = b""

    def __call__(self, connection: Any) -> None:
        connection.sendall(self.data)


@pytest.fixture(scope="module")
def scripted() -> Iterator[tuple[Client, Script]]:
    script = Script()
    paths: dict[str, Answer] = {
        "/v2/models/m": once(answered(metadata_of("m", INPUTS, []))),
        "/v2/models/other": script,
        "/other/config": script,
        "/m/infer": script,
        **wan_paths(script),
    }
    with http_peer(paths) as place, Client(f"http://{place}", retry=ONCE) as client:
        yield client, script


@bounded
@given(
    body=BODIES,
    length=st.none() | st.integers(-5, 99).map(str) | st.just("x"),
    status=st.sampled_from(["200 OK"] * 4 + ["400 Bad Request", "503 Service Unavailable"]),
)
def test_http_answer_is_tensors_or_our_error_whatever_comes(
    scripted: tuple[Client, Script], body: bytes, length: str | None, status: str
) -> None:
    client, script = scripted
    headers = [] if length is None else [f"Inference-Header-Content-Length: {length}"]
    script.data = answered(body, *headers, status=status)
    asks = (
        lambda: client.infer("m", X, timeout_s=30),
        lambda: client.model_metadata("other"),
        lambda: client.model_parameters("other"),
        client.models,
    )
    for ask in asks:
        try:
            ask()
        except SlipwayError as error:
            assert str(client.url) in str(error) or not isinstance(error, Malformed)


@bounded
@given(events=st.lists(EVENT | JSON, max_size=3), raw=st.none() | st.binary(max_size=60))
def test_http_stream_is_events_or_our_error_whatever_comes(
    scripted: tuple[Client, Script], events: list[Any], raw: bytes | None
) -> None:
    client, script = scripted
    script.data = events_of(*events)
    if raw is not None:
        script.data = answered(b"data: " + raw + b"\n\n", "Content-Type: text/event-stream")
    with pytest.raises(SlipwayError):  # none of them makes a whole video
        list(client.generate(REQUEST, timeout_s=30))


@pytest.fixture(scope="module")
def scripted_grpc() -> Iterator[tuple[Client, dict[str, bytes]]]:
    script: dict[str, bytes] = {}
    metadata = service_pb2.ModelMetadataResponse(name="m", versions=["1"])
    metadata.inputs.add(name="x", datatype="FP32", shape=[1])

    def told(sent: bytes) -> Iterator[bytes]:
        name = service_pb2.ModelMetadataRequest.FromString(sent).name
        known = {"m": metadata.SerializeToString(), "wan_t2v": wan_metadata("grpc")}
        yield known.get(name, script.get("answer", b""))

    methods = {
        "ModelMetadata": told,
        "ModelInfer": lambda _: iter([script["answer"]]),
        "ModelStreamInfer": lambda _: iter([script["answer"]]),
    }
    with grpc_peer(methods) as place, Client(place, retry=ONCE) as client:
        yield client, script


def _message(outputs: list[tuple[str, str, list[int]]], raws: list[bytes]) -> bytes:
    message = service_pb2.ModelInferResponse(raw_output_contents=raws)
    for name, datatype, shape in outputs:
        message.outputs.add(name=name, datatype=datatype, shape=shape)
    return bytes(message.SerializeToString())


MESSAGES = st.binary(max_size=40) | st.builds(
    _message,
    st.lists(
        st.tuples(
            st.sampled_from(["step", "steps", "elapsed_s", "frames", "video", "chunk", "chunks", "found"]),
            st.sampled_from(["FP32", "BYTES", "BOOL", "BF16", "INT32", "UINT8", "nothing", ""]),
            st.lists(st.integers(-2, 2) | st.integers(-(2**63), 2**63 - 1), max_size=4),
        ),
        max_size=4,
    ),
    st.lists(st.binary(max_size=16), max_size=4),
)


@bounded
@given(data=MESSAGES)
def test_grpc_answer_is_tensors_or_our_error_whatever_comes(
    scripted_grpc: tuple[Client, dict[str, bytes]], data: bytes
) -> None:
    client, script = scripted_grpc
    script["answer"] = data
    for ask in (lambda: client.infer("m", X, timeout_s=30), lambda: client.model_metadata("other")):
        try:
            ask()
        except SlipwayError as error:
            assert str(client.url) in str(error) or not isinstance(error, Malformed)


@bounded
@given(data=MESSAGES)
def test_grpc_stream_is_events_or_our_error_whatever_comes(
    scripted_grpc: tuple[Client, dict[str, bytes]], data: bytes
) -> None:
    client, script = scripted_grpc
    try:
        response = service_pb2.ModelInferResponse.FromString(data)
        script["answer"] = next(streamed(response))
    except Exception:  # noqa: BLE001 - bytes that are no message at all are sent as they are
        script["answer"] = data
    with pytest.raises(SlipwayError):
        list(client.generate(REQUEST, timeout_s=30))
