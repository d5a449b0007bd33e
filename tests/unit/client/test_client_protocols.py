"""Tensors, metadata and errors on both protocols, without a connection."""

from __future__ import annotations

import base64
import json

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from slipway_client.client import Client
from slipway_client.decoding import decoding
from slipway_client.generation import Generation
from slipway_client.grpc import errors as grpc_errors
from slipway_client.grpc import messages as grpc_messages
from slipway_client.http import messages as http_messages
from slipway_client.metadata import ModelMetadata, TensorMetadata, check_tensors
from slipway_client.retry import Deadline, RetryPolicy, UnknownModel
from slipway_client.tensors import from_bytes, to_bytes
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol import errors
from slipway_serving.protocol.requests import encode
from slipway_serving.protocol.turns import NO_SESSION, Turn

TREE = [
    errors.InvalidRequest,
    errors.NotReady,
    errors.Overloaded,
    errors.Cancelled,
    errors.DeadlineExceeded,
    errors.Unrecoverable,
]
METADATA = ModelMetadata(
    "wan_t2v",
    ("1",),
    (TensorMetadata("prompt", "BYTES", (1,)), TensorMetadata("latents", "FP32", (-1, 16, -1))),
    (),
)


class RpcError(grpc.RpcError):
    """What gRPC raises, with the status and the text of a real call."""

    def __init__(self, status: grpc.StatusCode, text: str) -> None:
        self._status, self._text = status, text

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str:
        return self._text


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array(["żółw".encode(), b"", b"\0\xff"], np.object_),
        np.array([True, False]),
        np.zeros((0, 3), np.float16),
        np.zeros((0,), np.object_),
    ],
    ids=["float32", "not contiguous", "text", "bool", "empty", "no text"],
)
def test_array_survives_when_sent_and_read_back(array: np.ndarray) -> None:
    datatype = grpc_messages.datatype_of(array)
    back = from_bytes(to_bytes(array), datatype, array.shape)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_array_is_refused_when_its_bytes_do_not_fit_its_shape() -> None:
    with pytest.raises(errors.Unrecoverable, match=r"FP32 \[2\]"):
        from_bytes(b"\0" * 12, "FP32", [2])


def test_check_passes_when_every_tensor_is_as_the_server_says() -> None:
    tensors = {"prompt": np.array([b"x"], np.object_), "latents": np.zeros((2, 16, 5), np.float32)}
    check_tensors(METADATA, tensors)


def test_check_names_every_tensor_when_several_do_not_fit() -> None:
    tensors = {
        "prompt": np.zeros((1,), np.int64),
        "latents": np.zeros((2, 8, 5), np.float32),
        "seed": np.zeros((1,), np.int64),
    }
    with pytest.raises(errors.InvalidRequest) as raised:
        check_tensors(METADATA, tensors)
    for part in (
        "wan_t2v: prompt must be BYTES [1] on this server, got INT64 [1]",
        "latents must be FP32 [-1, 16, -1] on this server, got FP32 [2, 8, 5]",
        "seed must be one of the served model's inputs",
    ):
        assert part in str(raised.value)


@pytest.mark.parametrize("kind", TREE)
def test_grpc_stream_raises_the_class_of_the_server_when_an_error_arrives(
    kind: type[errors.SlipwayError],
) -> None:
    text = f"in ensemble 'x', {kind('wan_t2v: why').to_wire()}"
    refusal = grpc_messages.stream_error(service_pb2.ModelStreamInferResponse(error_message=text))
    assert type(refusal) is kind
    assert str(refusal) == "wan_t2v: why"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Request for unknown model: 'nope' is not found", UnknownModel),
        ("Request for unknown model: 'slow' has no available versions", errors.NotReady),
        ("Exceeds maximum queue size", errors.Overloaded),
        ("unexpected inference input 'x' for model 'wan_t2v'", errors.InvalidRequest),
        ("something else", errors.Unrecoverable),
    ],
)
def test_grpc_stream_raises_the_right_class_when_triton_itself_refuses(
    text: str, kind: type[errors.SlipwayError]
) -> None:
    refusal = grpc_messages.stream_error(service_pb2.ModelStreamInferResponse(error_message=text))
    assert type(refusal) is kind


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        ("NOT_FOUND", "Request for unknown model: 'nope' is not found", UnknownModel),
        ("NOT_FOUND", "Request for unknown model: 'x' has no available versions", errors.NotReady),
        ("UNAVAILABLE", "failed to connect to all addresses", errors.NotReady),
        ("UNAVAILABLE", "Socket closed", errors.NotReady),
        ("UNAVAILABLE", "[RESOURCE_EXHAUSTED] wan_t2v: full", errors.Overloaded),
        ("UNIMPLEMENTED", "Received http2 header with status: 404", errors.NotReady),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 4)", errors.InvalidRequest),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", errors.DeadlineExceeded),
        ("CANCELLED", "Locally cancelled by application!", errors.Cancelled),
        ("INTERNAL", "boom", errors.Unrecoverable),
    ],
)
def test_grpc_call_raises_the_right_class_when_it_fails(
    status: str, text: str, kind: type[errors.SlipwayError]
) -> None:
    error = grpc_errors.inference_error(
        "host:1", RpcError(grpc.StatusCode[status], text), Deadline(3, "wan_t2v")
    )
    assert type(error) is kind


def test_grpc_question_is_a_server_not_ready_when_no_answer_comes_in_time() -> None:
    silent = RpcError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    error = grpc_errors.probe_error("host:1", silent, 10)
    assert type(error) is errors.NotReady
    assert "host:1: no answer within 10 s" in str(error)


@pytest.mark.parametrize("kind", TREE)
@pytest.mark.parametrize("sse", [False, True])
def test_http_raises_the_class_of_the_server_when_an_error_is_answered(
    kind: type[errors.SlipwayError], sse: bool
) -> None:
    body = json.dumps({"error": kind("wan_t2v: why").to_wire()})
    response = httpx.Response(400, text=f"data: {body}\n\n" if sse else body)
    error = http_messages.response_error("host:1", response)
    assert type(error) is kind
    assert str(error) == "wan_t2v: why"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, '{"error":"Request for unknown model: \'nope\' is not found"}', UnknownModel),
        (503, '{"error":"Exceeds maximum queue size"}', errors.Overloaded),
        (400, '{"error":"bad"}', errors.InvalidRequest),
        (500, "<html>oops</html>", errors.Unrecoverable),
        (502, "", errors.Unrecoverable),
        (400, '["no object"]', errors.InvalidRequest),
    ],
)
def test_http_raises_by_the_status_when_the_answer_has_no_code_of_ours(
    status: int, body: str, kind: type[errors.SlipwayError]
) -> None:
    assert type(http_messages.response_error("host:1", httpx.Response(status, text=body))) is kind


@pytest.mark.parametrize(
    "data", ["", "not json", '{"video": "cut of', "[1]", '{"x": [[1], [1, 2]]}', '{"x": null}', "[" * 100_000]
)
def test_http_stream_is_malformed_when_an_event_is_no_response(data: str) -> None:
    malformed = pytest.raises(errors.Malformed, match="host:1: the answer is malformed: wan_t2v: ")
    with malformed, decoding("host:1", "wan_t2v"):
        http_messages.parse_event(data)


def test_http_stream_raises_the_error_of_the_server_when_it_has_no_code_of_ours() -> None:
    assert type(http_messages.parse_event('{"error": "boom"}')) is errors.Unrecoverable


def test_http_body_has_one_scalar_per_field_when_a_request_is_sent() -> None:
    request = TextToVideoRequest(prompt="ż\n", frames=5, guidance_scale=4.5, preview=True)
    body = json.loads(json.dumps(http_messages.generate_body(encode(request), NO_SESSION)))
    assert body["prompt"] == "ż\n" and body["frames"] == 5
    assert body["guidance_scale"] == 4.5 and body["preview"] is True
    assert "timeout_s" not in body and "flow_shift" not in body


def test_http_body_tells_turn_and_shapes_when_a_session_brings_arrays() -> None:
    tensors = {"acc": np.ones((1, 2, 3), np.float32), "picture": np.array([b"\x89PNG"], np.object_)}
    body = json.loads(json.dumps(http_messages.generate_body(tensors, Turn("kitchen", start=True))))
    assert body["acc"] == [1.0] * 6 and body["shape_acc"] == "1,2,3"
    assert (body["sequence_id"], body["sequence_start"], body["sequence_end"]) == ("kitchen", True, False)
    assert base64.b64decode(body["picture"]) == b"\x89PNG" and "shape_picture" not in body


@pytest.mark.parametrize("form", ["video", "frames"])
def test_bytes_are_asked_for_as_text_when_the_protocol_is_http(form: str) -> None:
    request = TextToVideoRequest(prompt="x", output=form)
    for protocol, sent in (("grpc", form), ("http", f"{form}_base64")):
        job = Generation(request, None, None, protocol, RetryPolicy())  # type: ignore[arg-type]
        assert job.tensors["output"].tolist() == [sent.encode()]


def test_session_is_refused_when_the_request_opens_none() -> None:
    with (
        Client("localhost:1") as client,
        pytest.raises(errors.InvalidRequest, match="must be one that opens a session"),
    ):
        client.session(TextToVideoRequest(prompt="x"))


def test_client_is_refused_when_the_protocol_is_unknown() -> None:
    with pytest.raises(errors.InvalidRequest, match="grpc or http"):
        Client("localhost:1", "ftp")  # type: ignore[arg-type]
