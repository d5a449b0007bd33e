"""What comes over the wire broken: an error that says so, for its sender alone, and a server as it was."""

from __future__ import annotations

import gzip
import itertools
import json
import time
from contextlib import ExitStack, closing
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from health import ONES, answer_well, healthy
from raw_http import connect, post, send
from server_fixtures import infer_input
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from slipway_serving.triton.control import CONTROL_HEADER
from slipway_serving.triton.server import Server

AFFINE = "/v2/models/affine/infer"
MIB = 1 << 20


def entry(name: str = "x", shape: list[Any] | None = None, data: Any = None) -> dict[str, Any]:
    shown = {"name": name, "datatype": "FP32", "shape": shape if shape is not None else [1, 4]}
    return shown | ({"data": data} if data is not None else {})


def ask(server: Server, body: Any, path: str = AFFINE) -> tuple[int, str]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return send(server, post(path, content))


def binary(server: Server, told: int, sent: bytes, inputs: list[dict[str, Any]]) -> tuple[int, str]:
    head = json.dumps({"inputs": inputs}).encode()
    return send(
        server, post(AFFINE, head + sent, f"Inference-Header-Content-Length: {told if told else len(head)}")
    )


GOOD = {"inputs": [entry(data=[1, 1, 1, 1])]}


@pytest.mark.usefixtures("health")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"inputs": []}, "x"),
        ({"inputs": [entry(data=[1] * 4), entry("extra", data=[1] * 4)]}, "extra"),
        ({"inputs": [entry(data=[1] * 3)]}, "Shape does not match"),
        ({"inputs": [entry(data=[1] * 40)]}, "Shape does not match"),
        ({"inputs": [entry(shape=[1, 5], data=[1] * 5)]}, "x"),
        ({"inputs": [entry(shape=[2**62, 2**62], data=[1])]}, ""),
        ({"inputs": [entry(shape=[2**33, 2**31], data=[1])]}, ""),
        ({"inputs": [entry(shape=[-1, 4], data=[1] * 4)]}, ""),
        ({"inputs": [entry(shape=[1, 2**70], data=[1] * 4)]}, ""),
        ({"inputs": [entry(data=["a", "b", "c", "d"])]}, ""),
        ({"inputs": [{**entry(data=[1] * 4), "datatype": "FP99"}]}, ""),
        ({**GOOD, "outputs": [{"name": "z"}]}, "z"),
        ({"inputs": "x"}, ""),
        ([], ""),
        (b"", ""),
        (b"{", ""),
        (json.dumps(GOOD).encode()[:-4], ""),
        (b"\xff\xfe{}", ""),
        (b"[" * 120, ""),  # 250,000 deep end Triton 2.51, see docs/measurements/faults.md
        (b"\0" * 1000, ""),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_request_that_is_not_as_the_model_wants_is_refused_over_http(
    cheap: Server, body: Any, said: str
) -> None:
    status, text = ask(cheap, body)
    # Triton 2.51 answers 500 for some of them, for a negative dimension.
    assert 400 <= status < 600
    assert said in text
    assert "Traceback" not in text


@pytest.mark.usefixtures("health")
@pytest.mark.parametrize(
    ("told", "sent", "size"),
    [(99_999_999_999, b"", 16), (-1, b"", 16), (0, b"\0" * 15, 16), (0, b"\0" * 40, 16), (0, b"", 2**62)],
)
def test_bytes_that_are_not_as_many_as_said_are_refused(
    cheap: Server, told: int, sent: bytes, size: int
) -> None:
    inputs = [{**entry(), "parameters": {"binary_data_size": size}}]
    status, _ = binary(cheap, told, sent, inputs)
    assert 400 <= status < 600


INPUTS = {
    "told": {"name": "steps", "datatype": "INT64", "shape": [1], "data": [1]},
    "affine": entry(data=[1] * 4),
}


@pytest.mark.usefixtures("health")
@pytest.mark.parametrize("model", ["told", pytest.param("affine", marks=pytest.mark.python_graphs)])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_request_id_is_refused_and_shortened_in_the_log_when_it_is_too_long(
    cheap: Server, model: str, protocol: str
) -> None:
    """Python models run by the adapter and graphs of the onnxruntime backend limit ids in the same way."""

    def ask_with(request_id: str) -> tuple[int, str]:
        if protocol == "http":
            return ask(cheap, {"id": request_id, "inputs": [INPUTS[model]]}, f"/v2/models/{model}/infer")
        array = {"told": np.array([1]), "affine": ONES}[model]
        inputs = [infer_input(INPUTS[model]["name"], array)]
        with triton.InferenceServerClient(cheap.grpc_url) as client:
            try:
                client.infer(model, inputs, request_id=request_id, client_timeout=120)
            except InferenceServerException as error:
                return {"StatusCode.INVALID_ARGUMENT": 400}[error.status() or ""], str(error)
        return 200, ""

    assert ask_with("i" * 128)[0] == 200
    before = len(cheap.log_text())
    status, text = ask_with("i" * 2**16)
    assert status == 400
    said = (
        f"{model}: request id must be at most 128 bytes, got '{'i' * 24}... (65536 characters)'; try a UUID"
    )
    assert f"[INVALID_ARGUMENT] {said}" in text
    assert len(cheap.log_text()) - before < 4096


@pytest.mark.usefixtures("health")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"sequence_id": "s" * 2**16},
            f"session id must be a text of 1 to 128 bytes or a whole number of 1 to {2**64 - 1}, got"
            f" '{'s' * 24}... (65536 characters)'; try a UUID",
        ),
        ({"sequence_id": 1.5}, "got 1.5; try a UUID"),
        ({"f" * 2**16: 1}, f"got unknown {'f' * 24}... (65536 characters); try the input names"),
        ({f"f{n}": 1 for n in range(2000)}, "got unknown f0, f1, f10, f100, f1000 and 1995 more; try"),
        ({"timeout": "t" * 2**16}, f"timeout must be a number of microseconds, got '{'t' * 39}..."),
        ({"shape_steps": "1" * 2**16}, "shape_steps must be the shape of an input, sizes with commas"),
    ],
    ids=["session", "fraction", "field", "fields", "timeout", "shape"],
)
def test_text_beside_the_inputs_is_shortened_in_answer_and_log(
    cheap: Server, fields: dict[str, Any], said: str
) -> None:
    before = len(cheap.log_text())
    answer = httpx.post(f"http://{cheap.http_url}/v2/models/told/generate", json={"steps": 1, **fields})
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert len(answer.text) < 1024
    assert len(cheap.log_text()) - before < 4096


def call(server: Server, request: Any) -> Any:
    with triton.InferenceServerClient(server.grpc_url) as client:
        return client._client_stub.ModelInfer(request, timeout=120)


def message(raw: bytes | None, *shape: int, name: str = "x") -> Any:
    made = service_pb2.ModelInferRequest(model_name="affine")
    made.inputs.add(name=name, datatype="FP32", shape=shape)
    if raw is not None:
        made.raw_input_contents.append(raw)
    return made


@pytest.mark.usefixtures("health")
@pytest.mark.parametrize(
    "request_",
    [
        message(None, 1, 4),
        message(b"", 1, 4),
        message(b"\0" * 15, 1, 4),
        message(b"\0" * 40, 1, 4),
        message(b"\0" * 16, 1, 4, name=""),
        message(b"\0" * 16, 1, 4, name="x" * 100_000),
        message(b"\0" * 16, 2**62, 2**62),
        message(b"\0" * 16, -1, 4),
        message(b"\0" * 16),
        service_pb2.ModelInferRequest(model_name="affine"),
        service_pb2.ModelInferRequest(model_name="../affine"),
        service_pb2.ModelInferRequest(model_name="affine", model_version="9" * 40),
        service_pb2.ModelInferRequest(model_name="affine", model_version="-1"),
        service_pb2.ModelInferRequest(),
    ],
    ids=lambda value: str(value)[:40].replace("\n", " "),
)
def test_message_that_is_not_as_the_model_wants_is_refused_over_grpc(cheap: Server, request_: Any) -> None:
    import grpc

    with pytest.raises(grpc.RpcError) as refusal:
        call(cheap, request_)
    assert refusal.value.code() in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # an error that repeats a very long name fits no header
    )


@pytest.mark.usefixtures("health")
def test_texts_that_are_not_as_many_as_said_are_refused(cheap: Server) -> None:
    for raw in (b"\x05\0\0\0ab", b"\xff\xff\xff\xff", b"\x01\0\0\0a" * 3, b"\x01"):
        request = service_pb2.ModelInferRequest(model_name="echo")
        request.inputs.add(name="x", datatype="BYTES", shape=[2])
        request.raw_input_contents.append(raw)
        with pytest.raises(Exception, match=r"x|string|byte|element"):
            call(cheap, request)


@pytest.mark.usefixtures("health")
def test_shared_memory_that_is_too_small_or_unknown_is_refused(cheap: Server) -> None:
    headers = {f"triton-grpc-protocol-{CONTROL_HEADER}": cheap.control_token}
    with triton.InferenceServerClient(cheap.grpc_url) as client:
        with pytest.raises(InferenceServerException):
            client.register_system_shared_memory("none", "/absent-region", 64, headers=headers)
        for region, size, offset in (("none", 16, 0), ("none", 2**60, 2**60)):
            given = triton.InferInput("x", [1, 4], "FP32")
            given.set_shared_memory(region, size, offset)
            with pytest.raises(InferenceServerException):
                client.infer("affine", [given])


def test_body_above_the_limit_is_refused_without_being_kept(cheap: Server) -> None:
    with healthy(cheap):
        status, _ = send(cheap, post(AFFINE, b"{" + b" " * (1 << 20), length=1 << 40))
        assert status == 0 or status >= 400
        status, _ = send(cheap, post(AFFINE, b" " * (65 * MIB)))
        assert status == 0 or status >= 400


def test_body_that_unpacks_to_more_than_the_limit_is_refused(cheap: Server) -> None:
    """Triton 2.51 unpacks it whole and never gives that memory back, see docs/measurements/faults.md."""
    bomb = gzip.compress(b" " * (80 * MIB), 9)
    assert len(bomb) < MIB
    with healthy(cheap, slack_bytes=128 * MIB):
        status, _ = send(cheap, post(AFFINE, bomb, "Content-Encoding: gzip"))
        assert 400 <= status < 600


@pytest.mark.usefixtures("health")
def test_packed_bodies_that_are_none_are_refused(cheap: Server) -> None:
    good = gzip.compress(json.dumps(GOOD).encode())
    for number in range(100):
        broken = good[: number % len(good)] + bytes([number]) * 8
        status, _ = send(cheap, post(AFFINE, broken, "Content-Encoding: gzip"))
        # What was cut off behind its content is whole for Triton 2.51.
        assert status == 200 or 400 <= status < 600


def test_body_of_very_many_chunks_is_answered_or_refused_and_takes_no_more_each_time(cheap: Server) -> None:
    """Each chunk of a byte costs Triton 2.51 some 5 KB while the request lasts, which its allocator keeps."""
    body = json.dumps(GOOD).encode()
    chunks = b"".join(b"1\r\n" + bytes([byte]) + b"\r\n" for byte in body + b" " * 10_000) + b"0\r\n\r\n"
    head = f"POST {AFFINE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"

    def drip() -> None:
        status, _ = send(cheap, head.encode() + chunks)
        assert status in (0, 200) or 400 <= status < 500

    for _ in range(4):
        drip()
    with healthy(cheap, slack_bytes=96 * MIB):
        for _ in range(4):
            drip()


METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "\0\xff")
PATHS = (
    "", "/", "//", "/v2", "/v2/", "/v2/models", "/v2/models/", "/v2/models/affine", AFFINE,
    "/v2/models/affine/versions/1/infer", "/v2/models/affine/versions/x/infer", "/v2/models/../../etc/passwd",
    "/v2/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd/infer", "/v2/models/a%00b/infer", "/v2?" + "a" * 4000,
    "/v2/repository/index", "/v2/trace/setting", "/v2/models/affine/stats", "/v2/models/affine/generate",
    "/" + "a" * 60_000,
)  # fmt: skip


@pytest.mark.usefixtures("health")
def test_every_method_at_every_path_is_answered_or_refused(cheap: Server) -> None:
    for method, path in itertools.product(METHODS, PATHS):
        request = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        status, text = send(cheap, request.encode("latin-1"))
        assert status == 0 or 200 <= status < 600, (method, path)
        assert "root:" not in text


@pytest.mark.usefixtures("health")
def test_others_are_served_while_many_connections_send_their_headers_for_ever(cheap: Server) -> None:
    with ExitStack() as held:
        slow = [held.enter_context(closing(connect(cheap))) for _ in range(200)]
        for round_ in range(3):
            for connection in slow:
                connection.sendall(b"POST /v2" if round_ == 0 else b"x")
            answer_well(cheap)
            assert httpx.get(f"http://{cheap.http_url}/v2/health/live", timeout=60).status_code == 200


def test_connections_that_are_dropped_leave_no_descriptors(cheap: Server) -> None:
    process = psutil.Process(cheap.pid)
    with healthy(cheap):
        before = process.num_fds()
        for _ in range(200):
            with closing(connect(cheap)) as connection:
                connection.sendall(post(AFFINE, b"{", length=1000))
        deadline = time.monotonic() + 60
        while process.num_fds() > before + 8:
            assert time.monotonic() < deadline, f"{process.num_fds()} descriptors, {before} before"
            time.sleep(0.05)


@pytest.mark.usefixtures("health")
def test_bytes_that_are_no_grpc_are_refused(cheap: Server) -> None:
    import socket

    for sent in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 4096,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096,
    ):
        with socket.create_connection((cheap.config.host, cheap.config.grpc_port), timeout=60) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass


@pytest.mark.usefixtures("health")
def test_message_that_is_no_protobuf_is_refused(cheap: Server) -> None:
    import grpc

    with grpc.insecure_channel(cheap.grpc_url) as channel:
        for method in ("ModelInfer", "ModelMetadata", "ServerReady"):
            raw = channel.unary_unary(
                f"/inference.GRPCInferenceService/{method}",
                request_serializer=lambda value: value,
                response_deserializer=lambda value: value,
            )
            for content in (b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05ab"):
                with pytest.raises(grpc.RpcError):
                    raw(content, timeout=60)


@pytest.mark.usefixtures("health")
def test_stream_of_bad_requests_answers_each_and_goes_on(cheap: Server) -> None:
    with triton.InferenceServerClient(cheap.grpc_url) as client:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(client._channel)
        good = service_pb2.ModelInferRequest(model_name="affine")
        good.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        good.raw_input_contents.append(ONES.tobytes())
        requests = [message(b"\0" * 3, 1, 4), good, message(None, 1, 4), good]
        answers = list(stub.ModelStreamInfer(iter(requests), timeout=120))
        failed = [bool(answer.error_message) for answer in answers]
        assert sorted(failed) == [False, False, True, True]


@pytest.mark.usefixtures("health")
def test_wrong_dtype_and_nan_pass_or_fail_for_their_sender_alone(cheap: Server) -> None:
    with triton.InferenceServerClient(cheap.grpc_url) as client:
        with pytest.raises(InferenceServerException, match="x"):
            client.infer("affine", [infer_input("x", np.ones((1, 4), np.int64))])
        answer = client.infer("affine", [infer_input("x", np.full((1, 4), np.nan, np.float32))])
        assert np.isnan(answer.as_numpy("y")).all()
