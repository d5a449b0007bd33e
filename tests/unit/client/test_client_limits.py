"""Time limits of the questions that precede a request, and what errors about them and their answers name."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hostile import answered, grpc_peer, http_peer, once

from slipway_client import AsyncClient, Client, cancellation
from slipway_client.cancellation import CANCEL_GRACE_S
from slipway_client.grpc.async_transport import AsyncGrpcTransport
from slipway_client.grpc.transport import GrpcTransport
from slipway_client.http import messages
from slipway_client.http.async_transport import AsyncHttpTransport
from slipway_client.http.transport import HttpTransport
from slipway_client.retry import Deadline
from slipway_serving.protocol.errors import DeadlineExceeded, InvalidRequest, Malformed, NotReady
from slipway_serving.protocol.turns import NO_SESSION

pytestmark = pytest.mark.timeout(300)
TRANSPORTS = [GrpcTransport, AsyncGrpcTransport, HttpTransport, AsyncHttpTransport]
X = {"x": np.ones(1, np.float32)}


@contextmanager
def silent_peer(kind: type, *silent: str) -> Iterator[str]:
    """Yield the address of a peer that never answers some questions, and the others as Triton does.

    Args:
        kind: Class of the transport that asks.
        silent: Methods of gRPC, or ends of HTTP's paths, that get no answer.
    """
    over = threading.Event()

    def never(_: Any) -> Iterator[bytes]:
        over.wait()
        return iter([b""])

    def silence(_: Any) -> None:
        over.wait()

    if "Grpc" in kind.__name__:
        with grpc_peer(dict.fromkeys(silent, never)) as place:
            yield place
            over.set()
    else:
        with http_peer(dict.fromkeys(silent, silence)) as place:
            yield place
            over.set()


def asked(kind: type, place: str, ask: Callable[[Any], Any], limit_s: float = 5.0) -> Any:
    """Return what a transport answers, whose questions may take some seconds of their own."""

    async def answer() -> Any:
        transport = kind(place, limit_s)
        try:
            found = ask(transport)
            return await found if inspect.isawaitable(found) else found
        finally:
            closed = transport.close()
            if inspect.isawaitable(closed):
                await closed

    return asyncio.run(answer())


QUESTIONS: dict[str, tuple[Callable[[Any, Deadline], Any], str, str]] = {
    "server_ready": (lambda server, deadline: server.server_ready(deadline), "ServerReady", "/health/ready"),
    "model_ready": (lambda server, deadline: server.model_ready("m", deadline), "ModelReady", "/m/ready"),
    "metadata": (lambda server, deadline: server.metadata("m", deadline), "ModelMetadata", "/models/m"),
}


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("asked_first", [True, False], ids=["identity", "itself"])
def test_question_ends_with_the_time_of_its_request(kind: type, question: str, asked_first: bool) -> None:
    ask, method, path = QUESTIONS[question]
    if asked_first:
        method, path = "ServerMetadata", "/v2"
    with (
        silent_peer(kind, method if "Grpc" in kind.__name__ else path) as place,
        pytest.raises(
            DeadlineExceeded, match=r"^m: the call did not finish within 0\.2 s; try a longer timeout_s$"
        ),
    ):
        asked(kind, place, lambda server: ask(server, Deadline(0.2, "m")))


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_question_without_a_limit_ends_with_the_time_for_a_connection(kind: type) -> None:
    method = "ServerReady" if "Grpc" in kind.__name__ else "/health/ready"
    with silent_peer(kind, method) as place, pytest.raises(NotReady, match=f"^{place}: .*0.5 s"):
        asked(kind, place, lambda server: server.server_ready(), limit_s=0.5)


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_time_for_a_connection_is_refused_by_name_when_it_is_none(client: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^client: connect_timeout_s must be .*, got -1"):
        client("localhost", connect_timeout_s=-1)


@pytest.mark.parametrize("kind", TRANSPORTS[2:])
@pytest.mark.parametrize(
    ("path", "ask"),
    [
        ("/m/infer", lambda server: server.infer("m", X, Deadline(60, "m"))),
        ("/models/m", lambda server: server.metadata("m")),
        ("/m/config", lambda server: server.parameters("m")),
    ],
)
def test_malformed_answer_names_the_server_and_the_model(
    kind: type, path: str, ask: Callable[[Any], Any]
) -> None:
    with (
        http_peer({path: once(answered(b"[1"))}) as place,
        pytest.raises(Malformed, match=f"^{place}: the answer is malformed: m: "),
    ):
        asked(kind, place, ask)


@pytest.mark.parametrize("kind", TRANSPORTS[2:])
def test_malformed_event_of_a_stream_names_the_server_and_the_model(kind: type) -> None:
    async def read(transport: Any) -> None:
        answers = transport.stream("m", X, Deadline(60, "m"))
        if inspect.isasyncgen(answers):
            async for _ in answers:
                pass
        else:
            list(answers)

    events = answered(b"data: [1\n\n", "Content-Type: text/event-stream")
    paths = {"/generate_stream": once(events), "/slipway_cancel/infer": once(answered(b"{}"))}
    with (
        http_peer(paths) as place,
        pytest.raises(Malformed, match=f"^{place}: the answer is malformed: m: "),
    ):
        asked(kind, place, read)


def test_request_over_http_asks_for_binary_answers_and_says_where_its_tensors_lie() -> None:
    body, headers = messages.infer_body(X, NO_SESSION)
    size = int(headers[messages.HEADER_LENGTH])
    header = json.loads(body[:size])
    assert header["parameters"] == {"binary_data_output": True}
    assert [each["parameters"] for each in header["inputs"]] == [{"binary_data_size": 4}]
    assert body[size:] == X["x"].tobytes()


class Sent(Exception):
    """Ends a call as soon as its arguments are known."""


@pytest.mark.parametrize("kind", TRANSPORTS[:2])
@pytest.mark.parametrize(("limit_s", "timeout_s"), [(10.0, 10.0 + CANCEL_GRACE_S), (None, None)])
def test_call_of_a_stream_outlives_its_request_by_the_time_to_end_it(
    kind: Any, limit_s: float | None, timeout_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float | None] = []

    def sent(_: Any, timeout: float | None, metadata: Any) -> None:
        seen.append(timeout)
        raise Sent

    stub = SimpleNamespace(ModelStreamInfer=sent)

    class Lent:
        def __enter__(self) -> Any:
            return stub

        def __exit__(self, *_: object) -> None: ...

        async def __aenter__(self) -> Any:
            return stub

        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr(kind, "_stub", lambda _: Lent())

    async def read(transport: Any) -> None:
        answers = transport.stream("m", X, Deadline(limit_s, "m", clock=lambda: 0.0))
        await anext(answers) if inspect.isasyncgen(answers) else next(answers)

    with pytest.raises(Sent):
        asked(kind, "localhost:1", read)
    assert seen == [timeout_s]


@pytest.mark.parametrize("over", [True, False])
def test_call_whose_server_does_not_end_it_is_cut(over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "CANCEL_GRACE_S", 0.01)
    cut = threading.Event()
    with cancellation.CallCancellation(lambda: True, cut.set, None) as call:
        call.expect_end()
        if not over:
            assert cut.wait(100)
    assert over or cut.is_set()
