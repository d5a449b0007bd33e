"""Worlds over the gateway's socket, from a real Triton, against the same worlds by our client."""

from __future__ import annotations

import base64
import contextlib
import io
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from gateway_sockets import Gateway, Viewer, running_gateway, wait_for_free_places
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from server_fixtures import wait_until
from test_drain import drain
from websockets.exceptions import InvalidStatus
from world_fixtures import MODEL, exported_world

from slipway_client import Client, Mp4Fragment, UniversalActions, UniversalRequest
from slipway_gateway.replicas.replica import ReplicaState
from slipway_serving.triton.server import Server, ServerConfig
from slipway_serving.video.jpeg import JpegFrame

SOCKET = "/v1/realtime/video"
LIMIT = 2
FORWARD = {"keyboard_cond": {"forward": 1}, "mouse_cond": {"right": 0.1}}


def picture() -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(3).integers(0, 256, (70, 90, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


START = {"model": MODEL, "image": base64.b64encode(picture()).decode(), "seed": 7}


@pytest.fixture(scope="module")
def repository(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of a `universal` world, which takes two sessions at a time."""
    copy = tmp_path_factory.mktemp("gateway_worlds") / "repository"
    shutil.copytree(exported_world(shared), copy)
    config = copy / MODEL / "config.pbtxt"
    text = config.read_text()
    changed = text.replace(
        'key: "max_sessions" value { string_value: "8" }',
        f'key: "max_sessions" value {{ string_value: "{LIMIT}" }}',
    )
    assert changed != text
    config.write_text(changed)
    return copy


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: Server) -> Iterator[Gateway]:
    with running_gateway([server.grpc_url], {server.grpc_url: server.metrics_url}, resume_s=3.0) as running:
        yield running


def open_worlds(server: Server) -> float:
    text = httpx.get(server.metrics_url).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(
        sample.value
        for sample in samples
        if sample.name == "slipway_sessions_open" and sample.labels["model"] == MODEL
    )


def no_world_is_open(server: Server) -> None:
    wait_until(lambda: open_worlds(server) == 0, "no world is open")


def direct(server: Server, blocks: list[UniversalActions], output: str) -> list[list[bytes]]:
    """Return the chunks of a world that our client plays."""
    opening = UniversalRequest(picture(), seed=7, fps=25, output=output)
    with Client(server.grpc_url) as client, client.session(opening) as session:
        return [
            [event.data for event in session.step(turn) if isinstance(event, Mp4Fragment | JpegFrame)]
            for turn in blocks
        ]


def actions(forward: float = 0.0, right: float = 0.0) -> UniversalActions:
    mouse = np.array([[0, right]], np.float32)
    return UniversalActions(mouse, np.array([[forward, 0, 0, 0]], np.float32))


@pytest.mark.parametrize(("form", "output"), [("m4s", "mp4"), ("jpeg", "jpeg")])
def test_chunks_equal_the_models_when_nothing_is_pressed(
    gateway: Gateway, server: Server, form: str, output: str
) -> None:
    expected = direct(server, [actions()] * 4, output)
    with gateway.socket(SOCKET) as socket:
        viewer = Viewer(socket)
        viewer.send("session.start", format=form, **START)
        start = viewer.until("video.start")
        assert start["format"] == form and start["config"]["fps"] == 25 and start["resume_token"]
        assert [viewer.block(block) for block in range(4)] == expected
        viewer.send("session.stop")
        done = viewer.until("session.done")
        assert (done["chunks"], done["stopped"]) == (len(viewer.chunks), True)
        assert viewer.closed() == 1000
    facts = [message for message, _ in viewer.chunks]
    assert [each["transport_chunk_index"] for each in facts] == list(range(len(facts)))
    first = [each for each in facts if each["generation_chunk_index"] == 0]
    assert [each["num_frames"] for each in first] == ([1, 4, 4] if form == "m4s" else [1] * 9)
    if form == "m4s":
        assert first[0]["mime"].startswith('video/mp4; codecs="avc1.')
        with av.open(io.BytesIO(b"".join(data for _, data in viewer.chunks))) as container:
            places = [round(frame.time * 25) for frame in container.decode(video=0)]
        assert places == list(range(done["frames"]))
    no_world_is_open(server)


def test_events_steer_the_blocks_that_they_name_when_each_has_its_own(
    gateway: Gateway, server: Server
) -> None:
    turns = [actions(1, 0.1), actions(1, 0.1), actions(0, -0.5)]
    expected = direct(server, turns, "jpeg")
    with gateway.socket(SOCKET) as socket:
        viewer = Viewer(socket)
        viewer.send("session.start", format="jpeg", pacing="on_event", **START)
        viewer.until("video.start")
        event = {"event_id": "go", "event": FORWARD, "transition_chunks": 2}
        viewer.send("session.interaction", interaction=event)
        viewer.send("session.interaction", event_id=2, interaction={"event": {"mouse_cond": [[0, -0.5]]}})
        queued = [viewer.until("session.interaction.queued")["event_id"] for _ in range(2)]
        viewer.send("session.ping", event_id="p")
        assert viewer.until("session.pong")["event_id"] == "p"
        while len(viewer.of_block(2)) < 12:
            viewer.read()
        viewer.send("session.stop")
        assert viewer.until("session.done")["blocks"] == 3
    assert queued == ["go", 2]
    assert [viewer.of_block(block) for block in range(3)] == expected
    ids = {
        message["generation_chunk_index"]: tuple(
            tuple(message[f"{kind}_event_ids"]) for kind in ("started", "active", "completed")
        )
        for message, _ in viewer.chunks
    }
    assert ids == {0: (("go",), ("go",), ()), 1: ((), ("go",), ()), 2: ((2,), (2,), ("go",))}


def test_refused_event_leaves_the_world_as_it_is(gateway: Gateway) -> None:
    with gateway.socket(SOCKET) as socket:
        viewer = Viewer(socket)
        viewer.send("session.start", format="jpeg", pacing="on_event", **START)
        viewer.until("video.start")
        for event, problem in (
            ({"keyboard_cond": {"fly": 1}}, "keyboard_cond must be a list or an object with forward, back"),
            ({"keyboard_cond": {"forward": 7}}, "keyboard_cond must be within 0 to 1, got 7"),
            ({"rebase": True}, "'rebase' must be left out"),
            ({"keyboard_cond": [[1, 0, 0, 0]] * 5}, "keyboard_cond must have 9 rows"),
        ):
            viewer.send("session.interaction", interaction={"event_id": "x", "event": event})
            error = viewer.until("error")
            assert problem in error["message"] and error["event_id"] == "x"
            assert error["code"] == "invalid_value" and not error["retryable"]
        viewer.send("session.interaction", interaction={"event": FORWARD})
        while len(viewer.of_block(0)) < 9:
            assert viewer.read()["type"] != "error"
        viewer.send("session.stop")
        assert viewer.closed() == 1000


@pytest.mark.parametrize(
    ("first", "code", "problem"),
    [
        ({"type": "session.ping"}, 1008, "first message must be session.start or session.resume"),
        ({"type": "session.start", "model": "wan_t2v"}, 1008, "model must be a world"),
        ({"type": "session.start", **START, "format": "webm"}, 1008, "format must be m4s or jpeg"),
        ({"type": "session.start", **START, "image": "?"}, 1008, "image must be base64 text or a data URL"),
        ({"type": "session.start", **START, "speed": 3}, 1008, "'speed' must be left out"),
        ({"type": "session.start", **START, "output": "mp4"}, 1008, "'output' must be left out"),
        ({"type": "session.start", **START, "fps": 1000}, 1008, "fps must be"),
        ({"type": "session.resume", "token": "other"}, 1008, "token must be that of a world"),
        ("{", 1007, "message must be JSON"),
        ("x" * (4 << 20), 1007, "message must be JSON"),
        ("x" * ((4 << 20) + 1), 1009, "message must have at most"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_first_message_is_refused_by_name(
    gateway: Gateway, first: dict[str, Any] | str, code: int, problem: str
) -> None:
    with gateway.socket(SOCKET) as socket:
        viewer = Viewer(socket)
        if isinstance(first, str):
            socket.send(first)
        else:
            viewer.send(**{"kind": first["type"]}, **{k: v for k, v in first.items() if k != "type"})
        assert problem in viewer.until("error")["message"]
        assert viewer.closed() == code
    wait_for_free_places(gateway, MODEL)


def test_connection_is_refused_before_it_opens_when_the_key_is_wrong(gateway: Gateway) -> None:
    with pytest.raises(InvalidStatus) as refused:
        gateway.socket(SOCKET, x_key="wrong")
    assert refused.value.response.status_code == 401
    assert b'"code":"invalid_api_key"' in refused.value.response.body


def test_viewer_waits_in_line_when_all_sessions_are_taken(gateway: Gateway, server: Server) -> None:
    no_world_is_open(server)
    with contextlib.ExitStack() as stack:
        viewers = [Viewer(stack.enter_context(gateway.socket(SOCKET))) for _ in range(LIMIT + 2)]
        for viewer in viewers[:LIMIT]:
            viewer.send("session.start", format="m4s", **START)
            viewer.until("video.start")
        for place, viewer in enumerate(viewers[LIMIT:], 1):
            viewer.send("session.start", format="m4s", **START)
            status = viewer.until("queue_status")
            assert (status["position"], status["queue_depth"]) == (place, place)
        viewers[-1].send("session.stop")
        assert not viewers[-1].until("session.done")["blocks"]
        viewers[0].send("session.stop")
        assert viewers[LIMIT].until("video.start")
        assert viewers[LIMIT].block(0)
        for viewer in viewers:
            if viewer is not viewers[0] and viewer is not viewers[-1]:
                viewer.send("session.stop")
            assert viewer.closed() == 1000
    no_world_is_open(server)


def test_world_goes_on_when_its_viewer_comes_back(gateway: Gateway, server: Server) -> None:
    expected = direct(server, [actions()] * 5, "mp4")
    with gateway.socket(SOCKET) as socket:
        viewer = Viewer(socket)
        viewer.send("session.start", format="m4s", **START)
        token = viewer.until("video.start")["resume_token"]
        viewer.block(1)
        socket.socket.close()  # without a closing handshake, as a network that is gone
    received = viewer.chunks[:-1]  # the last one counts as lost
    time.sleep(1)
    with gateway.socket(SOCKET, x_key="somebody") as socket:
        other = Viewer(socket)
        other.send("session.resume", token=token)
        assert "token must be that of a world" in other.until("error")["message"]
    with gateway.socket(f"{SOCKET}?resume={token}&received_chunks={len(received)}") as socket:
        again = Viewer(socket)
        assert again.until("session.resumed")["lost_chunks"] == 0
        again.block(4)
        again.send("session.stop")
        assert again.closed() == 1000
    joined = [*received, *again.chunks]
    assert [message["transport_chunk_index"] for message, _ in joined] == list(range(len(joined)))
    assert [
        [data for message, data in joined if message["generation_chunk_index"] == block] for block in range(5)
    ] == expected
    no_world_is_open(server)


def test_world_ends_on_the_server_when_its_viewer_stays_away(gateway: Gateway, server: Server) -> None:
    with gateway.socket(SOCKET) as socket:
        viewer = Viewer(socket)
        viewer.send("session.start", format="m4s", **START)
        token = viewer.until("video.start")["resume_token"]
        viewer.block(0)
        assert open_worlds(server) >= 0
    no_world_is_open(server)
    wait_for_free_places(gateway, MODEL)
    with gateway.socket(SOCKET) as socket:
        late = Viewer(socket)
        late.send("session.resume", token=token)
        assert "try session.start" in late.until("error")["message"]


def test_world_waits_when_its_viewer_acknowledges_nothing(gateway: Gateway) -> None:
    with gateway.socket(SOCKET) as socket:
        viewer = Viewer(socket)
        viewer.send("session.start", format="m4s", **START)
        viewer.until("video.start")
        viewer.send("session.ack", received_chunks=0)
        with pytest.raises(TimeoutError):
            while True:
                viewer.read(timeout_s=3)
        # Two blocks beyond what was acknowledged, and one that had begun before the first acknowledgement.
        made = viewer.chunks[-1][0]["generation_chunk_index"]
        assert 1 <= made <= 2
        viewer.send("session.ack", received_chunks=len(viewer.chunks))
        viewer.block(made)
        viewer.send("session.stop")
        assert viewer.closed() == 1000


def test_world_goes_on_from_its_state_when_it_was_saved(gateway: Gateway, server: Server) -> None:
    expected = direct(server, [actions(1, 0.1)] * 3, "mp4")
    event = {"event": FORWARD}
    with gateway.socket(SOCKET) as socket:
        viewer = Viewer(socket)
        viewer.send("session.start", format="m4s", pacing="on_event", **START)
        viewer.until("video.start")
        viewer.send("session.interaction", interaction=event)
        viewer.until("session.interaction.queued")
        while len(viewer.of_block(0)) < 3:
            viewer.read()
        viewer.send("session.snapshot")
        total = viewer.until("session.state.done")["byte_length"]
        viewer.send("session.stop")
        assert viewer.closed() == 1000
    pieces = [data for message, data in viewer.chunks if message["type"] == "session.state"]
    state = b"".join(pieces)
    assert len(state) == total
    with gateway.socket(SOCKET) as socket:
        restored = Viewer(socket)
        restored.send("session.start", model=MODEL, pacing="on_event", state={"byte_length": total})
        for at in range(0, total, 1 << 20):
            socket.send(state[at : at + (1 << 20)])
        restored.until("video.start")
        for _ in range(2):
            restored.send("session.interaction", interaction=event)
        while len(restored.of_block(1)) < 3:
            restored.read()
        restored.send("session.stop")
        assert restored.closed() == 1000
    header = [data for message, data in restored.chunks if message["kind"] == "header"]
    assert len(header) == 1
    assert [restored.of_block(block) for block in (0, 1)] == expected[1:]
    with av.open(io.BytesIO(header[0] + b"".join(expected[1]))) as container:
        assert sum(1 for _ in container.decode(video=0)) == 12
    with gateway.socket(SOCKET) as socket:
        broken = Viewer(socket)
        broken.send("session.start", model=MODEL, state={"byte_length": 100})
        socket.send(b"\0" * 100)
        assert "record must have 1 to" in broken.until("error")["message"]
        assert broken.closed() == 1008
    no_world_is_open(server)


@pytest.mark.parametrize(
    ("how", "pacing"),
    [
        ("stop", "continuous"),
        ("drain", "on_event"),
        pytest.param("drain", "continuous", marks=pytest.mark.long),
        pytest.param("stop", "on_event", marks=pytest.mark.long),
    ],
)
def test_world_moves_when_its_server_shuts_down(
    repository: Path, server: Server, how: str, pacing: str
) -> None:
    blocks = 8
    on_event = pacing == "on_event"
    turn = actions(1, 0.1) if on_event else actions()
    expected = direct(server, [turn] * blocks, "mp4")
    no_world_is_open(server)
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as old:
        addresses = [old.grpc_url, server.grpc_url]
        metrics = {each.grpc_url: each.metrics_url for each in (old, server)}
        with running_gateway(addresses, metrics) as gateway, gateway.socket(SOCKET) as socket:
            viewer = Viewer(socket)
            viewer.send("session.start", format="m4s", pacing=pacing, **START)
            viewer.until("video.start")
            if on_event:
                viewer.send("session.interaction", interaction={"event": FORWARD})
            while len(viewer.of_block(0)) < 3:
                viewer.read()
            (first,) = [each for each in gateway.replicas.all if each.sessions(MODEL)]
            assert first.url == old.grpc_url
            stopping = threading.Thread(
                target=old.stop if how == "stop" else lambda: drain(old, 60, "--refuse")
            )
            stopping.start()
            moved = viewer.until("session.moved")
            assert moved["seconds"] < 60
            assert first.state is not ReplicaState.READY
            for _ in range(blocks - 1 if on_event else 0):
                viewer.send("session.interaction", interaction={"event": FORWARD})
            while len(viewer.of_block(blocks - 1)) < 3:
                viewer.read()
            (second,) = [each for each in gateway.replicas.all if each.sessions(MODEL)]
            assert second.url == server.grpc_url
            viewer.send("session.stop")
            assert viewer.closed() == 1000
            stopping.join()
    assert [viewer.of_block(block) for block in range(blocks)] == expected
    assert not [message for message in viewer.messages if message["type"] == "error"]
    with av.open(io.BytesIO(b"".join(data for _, data in viewer.chunks))) as container:
        frames = [round(frame.time * 25) for frame in container.decode(video=0)]
    assert frames == list(range(len(frames))) and len(frames) >= 9 + 12 * (blocks - 1)
    no_world_is_open(server)


def test_viewer_is_told_to_come_back_when_no_other_replica_takes_the_world(repository: Path) -> None:
    with (
        Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as only,
        running_gateway([only.grpc_url]) as gateway,
        gateway.socket(SOCKET) as socket,
    ):
        viewer = Viewer(socket)
        viewer.send("session.start", format="m4s", **START)
        viewer.until("video.start")
        viewer.block(0)
        stopping = threading.Thread(target=only.stop)
        stopping.start()
        viewer.until("session.moving")
        error = viewer.until("error")
        assert error["retryable"] and error["code"] == "unavailable"
        assert viewer.closed() == 1012
        stopping.join()
