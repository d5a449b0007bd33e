"""Microphones and inertial sensors over the gateway's sockets, against our client on the same real Triton."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from airimu_fixtures import signals
from gateway_sockets import Gateway, Viewer, running_gateway, wait_for_free_places
from server_fixtures import metric, wait_until
from tiny_exports import exported_once
from wakeword_fixtures import RATE_HZ, export_all, sounds
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from slipway_client import Client, CorrectionRequest
from slipway_client.listening import StreamDetector, WindowResult, split_recording
from slipway_client.sound import Recording
from slipway_serving.triton.server import Server, ServerConfig

STREAM, IMU_STREAM = "wakeword_stream", "airimu_stream"
WORDS = ["jarvis", "computer"]


@pytest.fixture(scope="module")
def server(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("gateway_listen") / "repository"
    shutil.copytree(export_all(shared).repository, repository)
    airimu, _ = exported_once(shared, "airimu", "tiny")
    shutil.copytree(airimu, repository, dirs_exist_ok=True)
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: Server) -> Iterator[Gateway]:
    with running_gateway([server.grpc_url], {server.grpc_url: server.metrics_url}) as running:
        yield running


@pytest.fixture(scope="module")
def audio() -> np.ndarray:
    return (sounds(4.3, 3) * 32767).astype(np.int16)


def expected(server: Server, audio: np.ndarray) -> list[WindowResult]:
    recording = Recording(audio.astype(np.float32) / 32768, RATE_HZ)
    with Client(server.grpc_url) as client:
        return list(StreamDetector(client, WORDS, 1000).detect(split_recording(recording)))


def listened(viewer: Viewer) -> list[WindowResult]:
    """Return what the socket said, in our client's form."""
    detections = {
        (message["word"], message["time_s"])
        for message in viewer.messages
        if message["type"] == "listen.detection"
    }
    return [
        WindowResult(word, each["end_s"], probability, threshold, (word, each["end_s"]) in detections)
        for each in viewer.messages
        if each["type"] == "listen.windows"
        for word, probability, threshold in zip(
            each["words"], each["probability"], each["threshold"], strict=True
        )
    ]


def send_pieces(socket: ClientConnection, data: bytes, size: int) -> None:
    for at in range(0, len(data), size):
        socket.send(data[at : at + size])


def encoded(audio: np.ndarray, container: str) -> bytes:
    """Return sound as Opus at 48 kHz, as a browser records it."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream("libopus", rate=48_000, layout="mono")
        stream.bit_rate = 128_000
        frame = av.AudioFrame.from_ndarray(audio[None], format="s16", layout="mono")
        frame.sample_rate = RATE_HZ
        for resampled in av.AudioResampler("s16", "mono", 48_000).resample(frame):
            output.mux(stream.encode(resampled))
        output.mux(stream.encode(None))
    return file.getvalue()


def no_session_is_open(gateway: Gateway, server: Server, model: str) -> None:
    wait_for_free_places(gateway, model)
    wait_until(lambda: metric(server, "slipway_sessions_open", model) == 0, "no session is open")


@pytest.mark.parametrize("size", [999, 32_000])
def test_windows_equal_our_clients_when_samples_come_in_any_pieces(
    gateway: Gateway, server: Server, audio: np.ndarray, size: int
) -> None:
    with gateway.socket("/v1/listen") as socket:
        viewer = Viewer(socket)
        viewer.send("listen.start", words=WORDS, sample_rate=RATE_HZ)
        viewer.until("listen.ready")
        send_pieces(socket, audio.tobytes(), size)
        viewer.send("listen.stop")
        assert viewer.until("listen.done")["seconds"] == 4.3
        assert viewer.closed() == 1000
    found, wanted = listened(viewer), expected(server, audio)
    assert [(each.word, each.time_s, each.event) for each in found] == [
        (each.word, each.time_s, each.event) for each in wanted
    ]
    assert any(each.event for each in wanted)
    np.testing.assert_allclose(
        [each.probability for each in found], [each.probability for each in wanted], atol=1e-5
    )
    no_session_is_open(gateway, server, STREAM)


@pytest.mark.parametrize("container", ["webm", "ogg"])
def test_opus_of_a_browser_is_heard_as_it_arrives(
    gateway: Gateway, server: Server, audio: np.ndarray, container: str
) -> None:
    data = encoded(audio, container)
    with gateway.socket("/v1/listen") as socket:
        viewer = Viewer(socket)
        viewer.send("listen.start", words=WORDS, format="opus")
        viewer.until("listen.ready")
        half = int(len(data) * 0.7)
        send_pieces(socket, data[:half], 700)
        # The first windows come before the file is complete.
        assert viewer.until("listen.windows")["end_s"] == 1.0
        send_pieces(socket, data[half:], 700)
        viewer.send("listen.stop")
        assert abs(viewer.until("listen.done")["seconds"] - 4.3) < 0.1
        assert viewer.closed() == 1000
    found, wanted = listened(viewer), expected(server, audio)
    assert [each.time_s for each in found] == [each.time_s for each in wanted]
    # Opus changes the sound a little, and a random backbone hears that.
    off = np.abs(np.array([a.probability - b.probability for a, b in zip(found, wanted, strict=True)]))
    assert np.median(off) < 0.1
    no_session_is_open(gateway, server, STREAM)


@pytest.mark.parametrize(
    ("start", "piece", "problem"),
    [
        ({"words": "jarvis"}, None, "words must be a list of texts"),
        ({"words": ["No Word!"]}, None, "words must be"),
        ({"format": "mp3"}, None, "format must be pcm16 or opus"),
        ({"sample_rate": 48_000}, None, "sample_rate must be 16000"),
        ({"cooldown_ms": -1}, None, "cooldown_ms must be 0 to 60000"),
        ({"speed": 1}, None, "'speed' must be left out"),
        ({"words": ["nobody"]}, b"\0\0", "word must be a served word, got 'nobody'"),
        ({"format": "opus"}, b"RIFF1234", "audio must be Opus in Ogg or WebM, got data that begins with"),
        ({"format": "opus"}, b"OggS" + b"x" * 9000, "audio must be Opus in Ogg or WebM"),
        ({}, b"\0", "audio must be whole 16-bit samples"),
        ({}, b"\0" * (257 << 10), "message must have at most"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_sound_is_refused_by_name(
    gateway: Gateway, server: Server, start: dict[str, Any], piece: bytes | None, problem: str
) -> None:
    with gateway.socket("/v1/listen") as socket:
        viewer = Viewer(socket)
        viewer.send("listen.start", **start)
        if piece is not None:
            viewer.until("listen.ready")
            socket.send(piece)
            if len(piece) < 256 << 10:
                # The gateway may have closed the socket already.
                with contextlib.suppress(ConnectionClosed):
                    viewer.send("listen.stop")
        assert problem in viewer.until("error")["message"]
        assert viewer.closed() in (1008, 1009)
    no_session_is_open(gateway, server, STREAM)


def test_session_ends_on_the_server_when_a_microphone_is_cut_off(
    gateway: Gateway, server: Server, audio: np.ndarray
) -> None:
    with gateway.socket("/v1/listen") as socket:
        viewer = Viewer(socket)
        viewer.send("listen.start", words=WORDS)
        viewer.until("listen.ready")
        send_pieces(socket, audio.tobytes()[:48_000], 8_000)
        viewer.until("listen.windows")
        socket.socket.close()
    no_session_is_open(gateway, server, STREAM)


# Inertial sensors.

FRAMES = 5000


@pytest.fixture(scope="module")
def recording(server: Server) -> tuple[np.ndarray, np.ndarray, Any]:
    """A recording, and the model's corrections of it as a whole."""
    made = signals(FRAMES)
    acc, gyro = made["acc"].astype(np.float32), made["gyro"].astype(np.float32)
    with Client(server.grpc_url) as client:
        (corrections,) = client.generate(CorrectionRequest(acc, gyro))
    return acc[0], gyro[0], corrections


def assert_corrected(answer: dict[str, Any], corrections: Any) -> None:
    for name in ("corrected_acc", "corrected_gyro", "correction_acc", "correction_gyro"):
        np.testing.assert_allclose(np.array(answer[name]), getattr(corrections, name)[0], atol=1e-5)


def post(gateway: Gateway, **content: Any) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{gateway.port}/v1/imu", timeout=300, trust_env=False, **content)


def test_recording_is_corrected_as_a_whole_when_it_is_json_or_a_file(
    gateway: Gateway, server: Server, recording: tuple[np.ndarray, np.ndarray, Any]
) -> None:
    acc, gyro, corrections = recording
    answer = post(gateway, json={"acc": acc.tolist(), "gyro": gyro.tolist(), "dt": 0.005})
    assert answer.status_code == 200, answer.text
    assert answer.json()["frames"] == FRAMES and answer.json()["time_s"][2] == 0.01
    assert_corrected(answer.json(), corrections)
    file = io.BytesIO()
    np.savez(file, acc=acc, gyro=gyro)
    assert_corrected(post(gateway, content=file.getvalue()).json(), corrections)
    rows = np.hstack([np.arange(FRAMES)[:, None] * 5_000_000, gyro, acc])
    text = "#timestamp [ns]," + ",".join(
        [*(f"w_RS_S_{axis} [rad s^-1]" for axis in "xyz"), *(f"a_RS_S_{axis} [m s^-2]" for axis in "xyz")]
    )
    table = "\n".join([text, *(",".join([str(int(row[0])), *map(repr, row[1:].tolist())]) for row in rows)])
    answer = post(gateway, files={"file": ("imu.csv", table.encode(), "text/csv")})
    assert answer.status_code == 200, answer.text
    assert_corrected(answer.json(), corrections)
    no_session_is_open(gateway, server, IMU_STREAM)


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        (b"", 400, "body must be a recording"),
        (b"{", 400, "invalid JSON"),
        (b'{"acc": [[1, 2, 3]]}', 400, "gyro must be given"),
        (b'{"acc": [[1, 2]], "gyro": [[1, 2, 3]]}', 400, "acc must be numbers [frames, 3]"),
        (b'{"acc": [[1, 2, 3]], "gyro": [[1, 2, 1e99]]}', 400, "gyro must be"),
        (b'{"acc": [[1, 2, 3]], "gyro": [[1, 2, 3]], "dt": 0}', 400, "dt must be above 0"),
        (b'{"acc": [[1, 2, 3]], "gyro": [[1, 2, 3]], "x": 0}', 400, "'x' must be left out"),
        (b"PK\x03\x04 and more", 400, "body must be a npz file"),
        (b"time,acc\n1,2\n", 400, "imu: recording.csv"),
        (b"0" * ((32 << 20) + 1), 413, "body must have at most 32 MiB"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_recording_is_refused_by_name(gateway: Gateway, body: bytes, status: int, problem: str) -> None:
    answer = post(gateway, content=body)
    assert answer.status_code == status, answer.text
    assert problem in answer.json()["error"]["message"]


def test_chunks_are_corrected_as_the_whole_recording_when_they_come_over_a_socket(
    gateway: Gateway, server: Server, recording: tuple[np.ndarray, np.ndarray, Any]
) -> None:
    acc, gyro, corrections = recording
    with gateway.socket("/v1/imu") as socket:
        viewer = Viewer(socket)
        viewer.send("imu.start")
        viewer.until("imu.ready")
        for start in range(0, FRAMES, 777):
            part = slice(start, start + 777)
            viewer.send("imu.chunk", acc=acc[part].tolist(), gyro=gyro[part].tolist())
        viewer.send("imu.stop")
        assert viewer.until("imu.done")["frames"] == FRAMES
        assert viewer.closed() == 1000
    parts = [message for message in viewer.messages if message["type"] == "imu.corrections"]
    assert parts[1]["first_frame"] == len(parts[0]["corrected_acc"])
    names = ("corrected_acc", "corrected_gyro", "correction_acc", "correction_gyro")
    assert_corrected({name: [row for part in parts for row in part[name]] for name in names}, corrections)
    with gateway.socket("/v1/imu") as socket:
        viewer = Viewer(socket)
        viewer.send("imu.start", initial_rotation=[1, 1, 1, 1])
        assert "initial_rotation must be unit quaternions" in viewer.until("error")["message"]
        assert viewer.closed() == 1008
    with gateway.socket("/v1/imu") as socket:
        viewer = Viewer(socket)
        viewer.send("imu.start", initial_rotation=[0, 0, 0, 1])
        viewer.until("imu.ready")
        socket.send(json.dumps({"type": "imu.chunk", "acc": [[0, 0, 9.8]], "gyro": [[0, 0]]}))
        assert "gyro must be numbers [frames, 3]" in viewer.until("error")["message"]
    no_session_is_open(gateway, server, IMU_STREAM)
