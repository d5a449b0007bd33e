"""What a client asks and in which order, over both protocols, blocking and not: :mod:`counting_peer`."""

from __future__ import annotations

import base64
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from counting_peer import Asked, Peer, counting_peer
from either_client import Sync

from slipway_client import AsyncClient, RetryPolicy, TextToVideoRequest, Video
from slipway_client.tensors import Tensors, datatype_of
from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Overloaded,
    SlipwayError,
    Unrecoverable,
)
from slipway_serving.protocol.events import Event, Progress, VideoPart, output_field
from slipway_serving.protocol.requests import Request, encode
from slipway_serving.protocol.rules import within
from slipway_serving.protocol.snapshots.parts import Header, make
from slipway_serving.protocol.snapshots.requests import Restore, Restored, Snapshot, SnapshotPart
from slipway_serving.protocol.turns import Turn

pytestmark = pytest.mark.timeout(120)
Number = Annotated[int, within(0, 99, "a number")]
NUMBER = ("INT64", [1])
SUMS = {
    "x": NUMBER, "first": NUMBER, "snapshot_part": NUMBER, "output": ("BYTES", [1]), "restore": ("BYTES", [1])
}  # fmt: skip
QUICK = RetryPolicy(budget_s=60, base_s=0.001, max_s=0.002)
PARTS = [make(Header("sums", "files", "one", number, 2, 3, {}), b"abc") for number in range(2)]


@dataclass(frozen=True)
class Total(Event):
    """What the numbers so far are together."""

    known_by: ClassVar[tuple[str, ...]] = ("total",)

    total: Annotated[int, output_field("sum of the numbers")]


@dataclass(frozen=True)
class Add(Request):
    """Adds a number."""

    model: ClassVar[str] = "sums"

    x: Number


@dataclass(frozen=True)
class Sums(Request):
    """Opens a session of sums."""

    model: ClassVar[str] = "sums"
    events: ClassVar[tuple[type[Event], ...]] = (Total, SnapshotPart, Restored)
    turn: ClassVar[type[Request] | None] = Add
    turn_alternatives: ClassVar[tuple[type[Request], ...]] = (Snapshot, Restore)

    first: Number = 5


@dataclass(frozen=True)
class Once(Add):
    """Adds a number and is answered once."""

    events: ClassVar[tuple[type[Event], ...]] = (Total,)
    streams: ClassVar[bool] = False


def number(name: str, value: int) -> Tensors:
    return {name: np.array([value])}


Served = Callable[..., tuple[Peer, Sync]]


@pytest.fixture(params=[("grpc", False), ("grpc", True), ("http", False), ("http", True)], ids=str)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    protocol, asynchronous = request.param
    with ExitStack() as stack:

        def made(
            answer: Callable[[Asked], Iterable[Tensors]], retry: RetryPolicy = QUICK
        ) -> tuple[Peer, Sync]:
            video = TextToVideoRequest(prompt="x", timeout_s=1.0)
            inputs = {name: (datatype_of(array), list(array.shape)) for name, array in encode(video).items()}
            peer = Peer(answer, {"sums": SUMS, "other": SUMS, "wan_t2v": inputs})
            peer.ready.add("wan_t2v")
            ask = Sync(stack.enter_context(counting_peer(protocol, peer)), asynchronous, retry)
            stack.callback(ask.close)
            return peer, ask

        yield made


def adding() -> Callable[[Asked], Iterable[Tensors]]:
    """Return what adds the numbers of each session, and gives and takes its state in two parts."""
    totals: dict[Any, int] = {}

    def answer(asked: Asked) -> Iterator[Tensors]:
        key = asked.turn.get("sequence_id", "")
        if asked.turn.get("sequence_start"):
            totals[key] = int(asked.values.get("first", [0])[0])
        if "snapshot_part" in asked.values:
            place = int(asked.values["snapshot_part"][0])
            text = asked.values["output"][0]
            data = (
                base64.b64encode(PARTS[place]) if text in ("bytes_base64", b"bytes_base64") else PARTS[place]
            )
            yield {"snapshot": np.array([data], np.object_), **number("part", place), **number("parts", 2)}
        elif "restore" in asked.values:
            totals[key] = totals.get(key, 0) + 1
            yield {**number("parts_taken", totals[key]), **number("parts", 2)}
        elif "x" in asked.values:
            totals[key] = totals.get(key, 0) + int(asked.values["x"][0])
            yield number("total", totals[key])
            yield number("total", -totals[key])

    return answer


def once(asked: Asked) -> Iterator[Tensors]:
    yield number("total", int(asked.values["x"][0]) + 1)


def refusing(*errors: SlipwayError) -> Callable[[Asked], Iterable[Tensors]]:
    """Return what refuses so many requests first."""
    left = list(errors)

    def answer(asked: Asked) -> Iterator[Tensors]:
        if left:
            raise left.pop(0)
        yield from once(asked)

    return answer


def test_infer_gives_the_outputs_and_asks_for_the_model_once(served: Served) -> None:
    peer, ask = served(once)
    for value in (1, 7):
        found = ask("infer", "sums", number("x", value))
        assert {name: array.tolist() for name, array in found.items()} == {"total": [value + 1]}
    assert [(asked.model, asked.values, asked.turn, asked.streams) for asked in peer.asked] == [
        ("sums", {"x": [1]}, {}, False),
        ("sums", {"x": [7]}, {}, False),
    ]
    assert peer.questions == [("metadata", "sums"), ("ready", "sums"), ("ready", "")]
    with pytest.raises(InvalidRequest, match=r"sums: x must be INT64 \[1\] on this server, got FP32 \[1\]"):
        ask("infer", "sums", {"x": np.zeros(1, np.float32)})
    assert len(peer.asked) == 2


@pytest.mark.parametrize("served", [("http", False), ("http", True)], indirect=True, ids=str)
def test_infer_is_tried_again_when_it_is_refused_and_only_then(served: Served) -> None:
    peer, ask = served(refusing(Overloaded("sums: full"), NotReady("sums: not yet")))
    assert ask("infer", "sums", number("x", 1))["total"].tolist() == [2]
    assert len(peer.asked) == 3
    # What was known of the model is asked anew after each refusal.
    assert [kind for kind, _ in peer.questions] == ["metadata", "ready", "ready"] * 3
    peer, ask = served(refusing(InvalidRequest("sums: bad")))
    with pytest.raises(InvalidRequest, match="sums: bad"):
        ask("infer", "sums", number("x", 1))
    assert len(peer.asked) == 1
    peer, ask = served(refusing(Overloaded("sums: full")))
    with pytest.raises(Overloaded, match="sums: full"):
        ask("infer", "sums", number("x", 1), turn=Turn(7, start=True))
    assert [asked.turn for asked in peer.asked] == [
        {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
    ]


def test_stream_is_tried_again_when_it_is_refused_before_its_first_answer(served: Served) -> None:
    peer, ask = served(refusing(Overloaded("sums: full"), Overloaded("sums: full")))
    request = type("Streamed", (Once,), {"streams": True})(3)
    assert ask("stream", request) == [Total(4)]
    assert [asked.streams for asked in peer.asked] == [True] * 3

    def late(asked: Asked) -> Iterator[Tensors]:
        yield from once(asked)
        raise Overloaded("sums: full")

    peer, ask = served(late)
    with pytest.raises(Overloaded, match="sums: full"):
        ask("stream", request)
    assert len(peer.asked) == 1


def test_request_that_is_answered_once_is_sent_so(served: Served) -> None:
    peer, ask = served(once)
    assert ask("stream", Once(3)) == ask("generate", Once(3)) == [Total(4)]
    assert ask("generate", Once(3), model="other") == [Total(4)]
    assert [(asked.model, asked.streams) for asked in peer.asked] == [
        ("sums", False), ("sums", False), ("other", False)
    ]  # fmt: skip


def film(asked: Asked) -> Iterator[Tensors]:
    """Answer with two steps and a video of two parts."""
    for step in (1, 2):
        yield {**number("step", step), **number("steps", 2), "elapsed_s": np.array([0.5])}
    text = asked.values["output"][0] in ("video_base64", b"video_base64")
    for chunk, data in enumerate((b"ab", b"c")):
        sent = np.array([base64.b64encode(data) if text else data], np.object_)
        yield {**number("chunk", chunk), **number("chunks", 2), "elapsed_s": np.array([1.5]), "video": sent}


def test_video_is_put_together_after_its_steps_and_has_its_time_limit(served: Served) -> None:
    peer, ask = served(film)
    steps = [Progress(1, 2, 0.5), Progress(2, 2, 0.5)]
    request = TextToVideoRequest(prompt="a cat")
    assert ask("generate", request) == [*steps, Video(b"abc", 1.5)]
    parts = ask("stream", request, timeout_s=50.0)
    assert parts[:2] == steps
    assert [type(part) for part in parts[2:]] == [VideoPart] * 2
    first, second = peer.asked
    assert first.values["prompt"][0] in ("a cat", b"a cat")
    assert "timeout_s" not in first.values
    assert second.values["timeout_s"] == [50.0]
    assert first.id != second.id and first.id.startswith("slipway-")

    def short(asked: Asked) -> Iterator[Tensors]:
        yield from list(film(asked))[:3]

    peer, ask = served(short)
    with pytest.raises(Unrecoverable, match="wan_t2v: result must have 2 chunks, got 1, without 1"):
        ask("generate", request)


def test_work_is_asked_to_end_by_its_own_id_when_its_caller_leaves(served: Served) -> None:
    peers: list[Peer] = []

    def endless(asked: Asked) -> Iterator[Tensors]:
        yield {**number("step", 1), **number("steps", 2), "elapsed_s": np.array([0.5])}
        assert peers[0].ended.wait(60)
        raise Cancelled("wan_t2v: cancelled by the caller")

    peer, ask = served(endless)
    peers.append(peer)
    events = ask.client.generate(TextToVideoRequest(prompt="x"))
    assert ask.next(events) == Progress(1, 2, 0.5)
    ask.leave(events)
    work, *ends = peer.asked
    assert {end.model for end in ends} == {"slipway_cancel"}
    (found,) = {str(end.values["ended_id"][0]).removeprefix("b'").removesuffix("'") for end in ends}
    assert found == work.id


def flags(peer: Peer) -> list[tuple[bool, bool]]:
    return [(asked.turn["sequence_start"], asked.turn["sequence_end"]) for asked in peer.asked]


def test_session_sends_its_opening_with_the_first_turn_and_ends_once(served: Served) -> None:
    peer, ask = served(adding())
    session = ask("session", Sums(first=40), session_id="mine")
    assert session.id == "mine"
    assert peer.asked == []
    assert ask("step", Add(1), of=session) == [Total(41), Total(-41)]
    assert ask("step", Add(2), of=session) == [Total(43), Total(-43)]
    ask("close", of=session)
    ask("close", of=session)
    assert [asked.values for asked in peer.asked] == [{"x": [1], "first": [40]}, {"x": [2]}, {}]
    assert flags(peer) == [(True, False), (False, False), (False, True)]
    assert {asked.turn["sequence_id"] for asked in peer.asked} == {"mine"}
    with pytest.raises(InvalidRequest, match="has ended; begin a new session"):
        ask("step", Add(1), of=session)


def test_turn_ends_with_its_own_time_limit(served: Served) -> None:
    over = threading.Event()

    def slow(asked: Asked) -> Iterator[Tensors]:
        if "x" in asked.values:
            over.wait()
        yield number("total", 1)

    _, ask = served(slow)
    session = ask("session", Sums())
    with pytest.raises(DeadlineExceeded, match=r"sums: the call did not finish within 0\.2 s"):
        ask("step", Add(1), of=session, timeout_s=0.2)
    over.set()
    ask("close", of=session)


def test_session_ends_with_its_last_turn_when_that_is_said(served: Served) -> None:
    peer, ask = served(adding())
    session = ask("session", Sums(), model="other")
    ask("step", Add(1), of=session, last=True)
    ask("close", of=session)
    assert flags(peer) == [(True, True)]
    assert peer.asked[0].model == "other"
    assert len(str(session.id)) == 32
    unused = ask("session", Sums())
    ask("close", of=unused)
    assert len(peer.asked) == 1
    with pytest.raises(
        InvalidRequest, match="sums: request must be one that opens a session, got Once; try client.generate"
    ):
        ask("session", Once(1))
    with pytest.raises(InvalidRequest, match="sums: a turn must be Add or Snapshot or Restore, got Sums"):
        ask("step", Sums(), of=ask("session", Sums()))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_session_stays_with_its_server_when_other_requests_go_to_another(asynchronous: bool) -> None:
    first, second = Peer(adding(), {"sums": SUMS}), Peer(once, {"sums": SUMS})
    with counting_peer("grpc", first) as here, counting_peer("grpc", second) as there:
        ask = Sync(f"{here},{there}", asynchronous, QUICK)
        session = ask("session", Sums())
        ask("step", Add(1), of=session)
        first.ready.discard("sums")
        ask.client._metadata.clear()
        assert ask("infer", "sums", number("x", 1))["total"].tolist() == [2]
        assert ask.client.url == there
        first.ready.add("sums")
        assert ask("step", Add(2), of=session) == [Total(8), Total(-8)]
        ask("close", of=session)
        ask.close()
    assert (len(first.asked), len(second.asked)) == (3, 1)


def test_session_is_ended_once_more_when_its_last_turn_fails(served: Served) -> None:
    def failing(asked: Asked) -> Iterator[Tensors]:
        if asked.values.get("x") == [2]:
            raise Overloaded("sums: full")
        if "x" in asked.values:
            yield number("total", 1)

    peer, ask = served(failing)
    session = ask("session", Sums())
    ask("step", Add(1), of=session)
    with pytest.raises(Overloaded, match="sums: full"):
        ask("step", Add(2), of=session, last=True)
    ask("close", of=session)
    assert flags(peer) == [(True, False), (False, True), (False, True)]


def test_snapshot_is_all_parts_and_a_session_goes_on_from_them(served: Served) -> None:
    peer, ask = served(adding())
    session = ask("session", Sums(), session_id="a")
    ask("step", Add(1), of=session)
    parts = ask("snapshot", of=session)
    assert parts == PARTS
    assert [asked.values["snapshot_part"] for asked in peer.asked[1:]] == [[0], [1]]
    restored = ask("restore", Sums, parts, session_id="b")
    assert flags(peer)[-2:] == [(True, False), (False, False)]
    assert all("first" not in asked.values for asked in peer.asked[1:])
    # Two parts were counted in the new session.
    assert ask("step", Add(3), of=restored)[0] == Total(5)
    ask("close", of=restored)
    assert flags(peer)[-1] == (False, True)
    for given, got in ((parts[:1], "1 of 2"), ([], "none")):
        with pytest.raises(
            InvalidRequest, match=f"sums: restore must receive all parts of a snapshot, got {got}"
        ):
            ask("restore", Sums, given)
    assert flags(peer)[-2:] == [(True, False), (False, True)]


async def test_parts_may_come_one_by_one_when_they_are_restored() -> None:
    async def coming() -> AsyncIterator[bytes]:
        for part in PARTS:
            yield part

    peer = Peer(adding(), {"sums": SUMS})
    with counting_peer("grpc", peer) as url:
        async with AsyncClient(url) as client, await client.restore(Sums, coming()) as session:
            assert [event async for event in session.step(Add(1))] == [Total(3), Total(-3)]
    assert flags(peer)[-1] == (False, True)


def test_turn_is_refused_when_it_is_answered_with_another_event(served: Served) -> None:
    _, ask = served(lambda _: iter([number("total", 1)]))
    session = ask("session", Sums())
    with pytest.raises(Unrecoverable, match="answer must be exactly one SnapshotPart, got Total; see"):
        ask("snapshot", of=session)
    _, ask = served(lambda _: iter([]))
    with pytest.raises(Unrecoverable, match="answer must be exactly one SnapshotPart, got nothing; see"):
        ask("snapshot", of=ask("session", Sums()))


def test_readiness_is_told_of_server_and_model_each(served: Served) -> None:
    peer, ask = served(once)
    assert ask("is_ready") and ask("is_ready", "sums") and ask("is_live")
    peer.ready.discard("sums")
    assert ask("is_ready") and not ask("is_ready", "sums")
    with pytest.raises(NotReady, match="sums: not ready on .*; try again when it has loaded"):
        ask("check_ready", "sums")
    peer.ready.discard("")
    assert not ask("is_ready") and ask("is_live")
    with pytest.raises(NotReady, match="the server is live but not ready"):
        ask("check_ready")
    peer.ready.discard("live")
    assert not ask("is_live")
    with pytest.raises(NotReady, match="the server reports that it is not live"):
        ask("check_live")


@pytest.mark.parametrize(("missing", "said"), [("sums", "sums: not ready"), ("", "sums's server: not ready")])
def test_nothing_is_sent_when_model_or_server_is_not_ready(served: Served, missing: str, said: str) -> None:
    peer, ask = served(once, RetryPolicy(budget_s=0))
    peer.ready.discard(missing)
    with pytest.raises(NotReady, match=said):
        ask("infer", "sums", number("x", 1))
    assert peer.asked == []


def test_model_is_described_by_its_tensors_and_its_parameters(served: Served) -> None:
    peer, ask = served(once)
    peer.parameters |= {"max_sessions": "2"}
    found = ask("model_metadata", "sums")
    assert (found.name, found.versions, found.outputs) == ("sums", ("1",), ())
    assert [(tensor.name, tensor.datatype, tensor.shape) for tensor in found.inputs][:2] == [
        ("x", "INT64", (1,)),
        ("first", "INT64", (1,)),
    ]
    assert ask("model_parameters", "sums") == {"max_sessions": "2"}
    assert peer.questions == [("metadata", "sums"), ("config", "sums")]


def test_ready_models_are_listed_once_each(served: Served) -> None:
    peer, ask = served(once)
    peer.ready |= {"sums", "other"}
    assert ask("models") == tuple(sorted(peer.ready - {"", "live"}))
    peer.ready.discard("other")
    assert "sums" in ask("models") and "other" not in ask("models")
