"""Clients and commands against peers that are not Triton, are broken, or attack: :mod:`hostile`."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import Answer, answered, dripping, grpc_peer, http_peer, metadata_of, once
from hostile_videos import (
    INPUTS,
    ONCE,
    REQUEST,
    X,
    events_of,
    infer_answer,
    streamed,
    wan_metadata,
    wan_paths,
)
from tritonclient.grpc import service_pb2

from slipway_cli import root
from slipway_cli.listen.commands import print_results
from slipway_client import AsyncClient, Client, RetryPolicy, TextToVideoRequest
from slipway_client.listening import WindowResult
from slipway_client.progress import progress
from slipway_serving.protocol.errors import DeadlineExceeded, Malformed, NotReady, SlipwayError
from slipway_serving.triton.control import ModelControl

# What is tried here once hung for ever.
pytestmark = pytest.mark.timeout(300)
PAGE = b"# HELP nv_inference_request_success Number of successful inference requests\n"
NOT_TRITON = "this address answers HTTP, but it is not Triton"


@contextmanager
def not_triton() -> Iterator[str]:
    """Yield the address of a web server that answers 200 to everything, as the metrics port does."""
    with http_peer({"/v2": once(answered(PAGE))}, PAGE) as place:
        yield place


@pytest.mark.parametrize(
    "body", [PAGE, b'{"status": "ok"}', b'{"name": "mlserver", "extensions": []}', b"[1]"]
)
def test_address_is_not_ready_when_it_answers_http_but_is_not_triton(body: bytes) -> None:
    with http_peer({"/v2": once(answered(body))}, body) as place, Client(f"http://{place}") as client:
        assert not client.is_ready() and not client.is_live() and not client.is_ready("wan_t2v")
        for ask in (client.check_ready, client.check_live, lambda: client.model_metadata("wan_t2v")):
            with pytest.raises(NotReady, match=NOT_TRITON):
                ask()


async def test_async_client_is_told_when_an_address_is_not_triton() -> None:
    with not_triton() as place:
        async with AsyncClient(f"http://{place}", retry=RetryPolicy(budget_s=100_000)) as client:
            assert not await client.is_ready() and not await client.is_live()
            with pytest.raises(NotReady, match=NOT_TRITON):
                await client.infer("m", X)


@pytest.mark.parametrize("scheme", ["", "http://"])
@pytest.mark.parametrize(
    "command", [["ready"], ["ready", "--live"], ["generate", "wan_t2v", "x", "--output", "OUT"]]
)
def test_command_says_so_when_an_address_is_not_triton(
    command: list[str], scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [part.replace("OUT", str(tmp_path / "out.mp4")) for part in command]
    with not_triton() as place:
        assert root.run([*line, "--url", f"{scheme}{place}"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and NOT_TRITON in err and "defect" not in err


def test_model_control_says_so_when_an_address_is_not_triton() -> None:
    with not_triton() as place:
        control = ModelControl(place)
        for order in (
            control.ready_models,
            lambda: control.count_processes("m", ()),
            lambda: control.load("m"),
        ):
            with pytest.raises(NotReady, match=f"triton {place}: .*it is not Triton"):
                order()


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[{"no": "name"}]', b"[[[[", b"\xff"])
def test_model_control_says_so_when_an_index_is_malformed(body: bytes) -> None:
    with (
        http_peer({"/v2/repository/index": once(answered(body))}) as place,
        pytest.raises(NotReady, match=f"triton {place}: the answer is malformed: index"),
    ):
        ModelControl(place).ready_models()


def test_address_is_not_ready_when_it_answers_grpc_but_is_not_triton() -> None:
    empty = service_pb2.ServerMetadataResponse(name="other").SerializeToString()
    for methods in ({"ServerMetadata": lambda _: iter([empty])}, {"ServerMetadata": None}):
        with grpc_peer(methods) as place, Client(place) as client:  # type: ignore[arg-type]
            assert not client.is_ready() and not client.is_live()
            with pytest.raises(NotReady, match="this address answers gRPC, but it is not Triton"):
                client.infer("m", X)


@pytest.mark.parametrize("scheme", ["http://", "HTTP"])
def test_client_speaks_http_when_its_url_says_so(scheme: str) -> None:
    paths = {"/v2/models/m": once(answered(metadata_of("m", INPUTS, [])))}
    with http_peer(paths) as place:
        url, protocol = (f"{scheme}{place}", None) if "://" in scheme else (place, "http")

        async def told() -> Any:
            async with AsyncClient(url, protocol) as client:  # type: ignore[arg-type]
                return await client.model_metadata("m")

        with Client(url, protocol) as client:  # type: ignore[arg-type]
            assert client.model_metadata("m") == asyncio.run(told())
            assert client.is_ready()


SLOW: dict[str, tuple[dict[str, Answer], type[SlipwayError]]] = {
    "headers": ({"/infer": dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x")}, DeadlineExceeded),
    "body": ({"/infer": dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{")}, DeadlineExceeded),
    "no length": ({"/infer": dripping(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{")}, DeadlineExceeded),
    "silence": ({"/infer": dripping(b"", b"")}, DeadlineExceeded),
    "metadata": (
        {"/v2/models/m": dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{")},
        DeadlineExceeded,
    ),
    "identity": ({"/v2": dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{")}, DeadlineExceeded),
}


@pytest.mark.parametrize("slow", SLOW)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_infer_ends_at_its_limit_when_an_answer_drips(slow: str, asynchronous: bool) -> None:
    answers, kind = SLOW[slow]
    paths = {"/v2/models/m": once(answered(metadata_of("m", INPUTS, []))), **answers}
    with http_peer(paths) as place, pytest.raises(kind, match="m: the call did not finish within 0.6 s"):
        if asynchronous:

            async def called() -> None:
                async with AsyncClient(f"http://{place}") as client:
                    await client.infer("m", X, timeout_s=0.6)

            asyncio.run(called())
        else:
            with Client(f"http://{place}") as client:
                client.infer("m", X, timeout_s=0.6)


def test_question_ends_at_its_limit_when_an_answer_drips() -> None:
    drip = dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{")
    with (
        http_peer({"/v2/health/ready": drip}) as place,
        Client(f"http://{place}", connect_timeout_s=0.4) as client,
    ):
        assert not client.is_ready()
        with pytest.raises(NotReady, match=r"no answer within 0\.4 s"):
            client.check_ready()


STEP = {"step": 1, "steps": 3, "elapsed_s": 0.5}
ENDLESS = dripping(
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: " + json.dumps(STEP).encode() + b"\n\n",
    b": still there\n",
)
CANCELS: dict[str, Answer] = {
    "without found": once(answered(b'{"outputs": []}')),
    "no JSON": once(answered(b"nothing")),
    "drips": dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{"),
    "found is a picture": once(
        answered(
            json.dumps(
                {"outputs": [{"name": "found", "datatype": "X", "shape": [], "parameters": {}}]}
            ).encode()
        )
    ),
}


@pytest.mark.parametrize("cancel", CANCELS)
def test_stream_can_be_left_over_http_when_the_server_does_not_say_found(cancel: str) -> None:
    with http_peer(wan_paths(ENDLESS, CANCELS[cancel])) as place:
        with Client(f"http://{place}") as client, closing(client.generate(REQUEST)) as events:
            assert next(events).step == 1  # type: ignore[union-attr]

        async def left() -> None:
            async with AsyncClient(f"http://{place}") as client, aclosing(client.generate(REQUEST)) as events:
                assert (await anext(events)).step == 1  # type: ignore[union-attr]

        asyncio.run(left())


@pytest.mark.parametrize("cancel", CANCELS)
def test_stream_ends_at_its_limit_over_http_when_the_server_does_not_say_found(cancel: str) -> None:
    with (
        http_peer(wan_paths(ENDLESS, CANCELS[cancel])) as place,
        Client(f"http://{place}") as client,
        pytest.raises(DeadlineExceeded),
    ):
        list(client.generate(REQUEST, timeout_s=0.3))


def endless_grpc(first: service_pb2.ModelInferResponse) -> tuple[Callable[[bytes], Iterator[bytes]], Any]:
    """Return a stream of one message that does not end before the event that is returned too."""
    over = threading.Event()

    def answer(_: bytes) -> Iterator[bytes]:
        yield from streamed(first)
        over.wait(60)

    return answer, over


def step_message() -> service_pb2.ModelInferResponse:
    message = service_pb2.ModelInferResponse()
    for name, datatype, array in (
        ("step", "INT32", np.array([1], np.int32)),
        ("steps", "INT32", np.array([3], np.int32)),
        ("elapsed_s", "FP32", np.array([0.5], np.float32)),
    ):
        message.outputs.add(name=name, datatype=datatype, shape=[1])
        message.raw_output_contents.append(array.tobytes())
    return message


@pytest.mark.parametrize(
    "cancel",
    [
        service_pb2.ModelInferResponse(),
        infer_answer("found", "BYTES", [1], b"\xff\xff\xff\x7f"),
        infer_answer("found", "FP32", [2**40], b""),
    ],
    ids=["without found", "struct", "huge"],
)
def test_stream_can_be_left_over_grpc_when_the_server_does_not_say_found(
    cancel: service_pb2.ModelInferResponse,
) -> None:
    answer, over = endless_grpc(step_message())
    methods = {
        "ModelMetadata": lambda _: iter([wan_metadata("grpc")]),
        "ModelStreamInfer": answer,
        "ModelInfer": lambda _: iter([cancel.SerializeToString()]),
    }
    with grpc_peer(methods) as place, ExitStack() as stack:
        stack.callback(over.set)
        with Client(place) as client, closing(client.generate(REQUEST)) as events:
            assert next(events).step == 1  # type: ignore[union-attr]

        async def left() -> None:
            async with AsyncClient(place) as client, aclosing(client.generate(REQUEST)) as events:
                assert (await anext(events)).step == 1  # type: ignore[union-attr]

        asyncio.run(left())


FRAME = base64.b64encode(bytes(32 * 64 * 3)).decode()
PART = {"chunk": 0, "first_frame": 0, "elapsed_s": 1.0, "height": 32, "width": 64, "frames_base64": FRAME}
CLAIMS: dict[str, list[dict[str, Any]]] = {
    "frames in all": [{**PART, "chunks": 1, "frames_total": 2**31 - 1}],
    "frames without a total": [{**PART, "chunks": 1, "first_frame": 2**31 - 2}],
    "parts": [{**PART, "chunks": 2**31 - 1, "frames_total": 5}],
    "bytes of a video": [{"chunk": 0, "chunks": 1, "elapsed_s": 1.0, "video": 2**31 - 1}],
    "height of frames": [{**PART, "chunks": 1, "height": 2**62}],
    "size of a preview": [{**STEP, "preview": [0], "height": 2**31 - 1, "width": 2**31 - 1}],
    "pixels beyond a byte": [{**STEP, "preview": [256, 0, 0], "height": 1, "width": 1}],
}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("output", ["video", "frames"])
def test_claim_of_a_size_is_malformed_before_anything_of_it_is_made(claim: str, output: str) -> None:
    fields = {"prompt": "x", "frames": 5, "height": 32, "width": 64, "steps": 3, "output": output}
    with (
        http_peer(wan_paths(once(events_of(*CLAIMS[claim])))) as place,
        Client(f"http://{place}", retry=ONCE) as client,
        pytest.raises(Malformed, match=rf"http://{place}: the answer is malformed: wan_t2v: "),
    ):
        list(client.generate(TextToVideoRequest(**fields)))  # type: ignore[arg-type]


ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202emoc.live\u2066 \ud800"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_text_of_a_server_is_shown_and_not_obeyed(protocol: str, capfd: pytest.CaptureFixture[str]) -> None:
    text = ESCAPES.replace("\ud800", "") if protocol == "grpc" else ESCAPES
    refusal = once(answered(json.dumps({"error": text}).encode(), status="400 Bad Request"))

    def refused(_: bytes) -> Iterator[bytes]:
        raise RuntimeError(text)

    with (
        http_peer({"/v2/models/m": refusal}) as over_http,
        grpc_peer({"ModelMetadata": refused}) as over_grpc,
    ):
        place = over_http if protocol == "http" else over_grpc
        assert root.run(["ready", "--url", f"{protocol}://{place}", "--model", "m"]) in (1, 2)
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "owned" in err and r"\x1b[2J\x9b31m\u202emoc" in err
    assert all(each.isprintable() or each == "\n" for each in err)


def test_words_of_a_server_are_shown_and_not_obeyed(capfd: pytest.CaptureFixture[str]) -> None:
    heard = [WindowResult(ESCAPES, 1.0, 0.9, 0.5, event=True)]
    print_results(heard, "stdin", quiet=False)
    out = capfd.readouterr().out
    assert "\x1b" not in out and "\x9b" not in out and r"\x1b]0;owned\x07" in out


def test_progress_says_nothing_when_a_server_counts_no_steps(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("step", quiet=False) as report_steps:
        for step, steps in ((0, 0), (1, 0), (0, 5), (-1, -1)):
            report_steps(step, steps)
    assert capfd.readouterr().err == ""
