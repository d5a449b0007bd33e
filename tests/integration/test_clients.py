"""The client library and `slipway generate` against a real Triton, over both protocols."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from gate import Gate, let_it_notice, settled

from slipway_cli import root
from slipway_client import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    Frames,
    InvalidRequest,
    NotReady,
    Progress,
    RetryPolicy,
    TextToVideoRequest,
    Video,
)
from slipway_client.address import address_of
from slipway_serving.triton.server import Server

Protocol = Literal["grpc", "http"]
PROTOCOLS: tuple[Protocol, ...] = ("grpc", "http")
ONCE = RetryPolicy(budget_s=0)


def request(**fields: Any) -> TextToVideoRequest:
    quick = {"prompt": "A serene lake", "frames": 5, "height": 32, "width": 64, "steps": 3, "seed": 7}
    return TextToVideoRequest(**(quick | fields))


LONG = {"frames": 33, "height": 128, "width": 128, "steps": 100}


def url_of(server: Server, protocol: Protocol) -> str:
    return server.grpc_url if protocol == "grpc" else server.http_url


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def stops_early(gated_server: tuple[Server, Gate]) -> Iterator[None]:
    """Let one step pass in the block, then one after another; assert that the 100 steps are not all run."""
    server, gate = gated_server
    before = settled(server)
    gate.let(1)
    yield
    report = let_it_notice(server, gate, before)
    assert report["code"] in ("CANCELLED", "DEADLINE_EXCEEDED")
    assert report.get("steps_done", 0) < 60  # none where the time was over before the first


class Relay:
    """A TCP relay to the server that can come late and go early."""

    def __init__(self, port: int, target: str) -> None:
        host, _, target_port = target.rpartition(":")
        self._target = (host, int(target_port))
        self._listener = socket.create_server(("127.0.0.1", port))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Drop every connection and take no new one."""
        for end in (self._listener, *self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_client_yields_each_step_then_the_video_when_generating(server: Server, protocol: Protocol) -> None:
    with Client(url_of(server, protocol), protocol) as client:
        *steps, video = client.generate(request(preview=True))
    assert [(event.step, event.steps) for event in steps if isinstance(event, Progress)] == [
        (1, 3),
        (2, 3),
        (3, 3),
    ]
    for event in steps:
        assert isinstance(event, Progress) and event.preview is not None
        assert event.preview.shape == (4, 8, 3) and event.preview.dtype == np.uint8
    assert isinstance(video, Video) and b"ftyp" in video.data[:16]


def test_both_protocols_and_clients_give_the_same_bytes_when_the_seed_is_the_same(server: Server) -> None:
    async def last(protocol: Protocol) -> Any:
        async with AsyncClient(url_of(server, protocol), protocol) as client:
            return [event async for event in client.generate(request())][-1]

    results = [asyncio.run(last(protocol)) for protocol in PROTOCOLS]
    for protocol in PROTOCOLS:
        with Client(url_of(server, protocol), protocol) as client:
            results.append(list(client.generate(request()))[-1])
    assert all(isinstance(result, Video) for result in results)
    assert len({result.data for result in results}) == 1


def test_frames_have_the_asked_shape_when_asked_for_over_grpc(server: Server) -> None:
    with Client(server.grpc_url) as client:
        *_, result = client.generate(request(frames=9, output="frames"))
    assert isinstance(result, Frames)
    assert result.array.shape == (9, 32, 64, 3) and result.array.dtype == np.uint8


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_server_error_is_of_its_own_class_when_the_served_models_refuse(
    server: Server, protocol: Protocol
) -> None:
    with (
        Client(url_of(server, protocol), protocol) as client,
        pytest.raises(InvalidRequest, match=r"height must be .* got 4096"),
    ):
        list(client.generate(request(height=4096)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_model_is_named_at_once_when_the_server_does_not_have_it(server: Server, protocol: Protocol) -> None:
    # A client that tried again would do so for longer than a test may last.
    with (
        Client(url_of(server, protocol), protocol, retry=RetryPolicy(budget_s=100_000)) as client,
        pytest.raises(NotReady, match="nope"),
    ):
        list(client.generate(request(), model="nope"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fields_are_named_when_the_served_model_takes_others(server: Server, protocol: Protocol) -> None:
    with (
        Client(url_of(server, protocol), protocol) as client,
        pytest.raises(InvalidRequest, match="seed must be one of the served model's inputs"),
    ):
        list(client.generate(request(), model="wan_t2v_prompt"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_infer_gives_the_outputs_when_the_model_answers_once(server: Server, protocol: Protocol) -> None:
    prompt = np.array([[b"A lake"]], np.object_)
    with Client(url_of(server, protocol), protocol) as client:
        outputs = client.infer("wan_t2v_prompt", {"prompt": prompt}, timeout_s=60)
        with pytest.raises(InvalidRequest, match="prompt must be BYTES"):
            client.infer("wan_t2v_prompt", {"prompt": np.zeros((1, 1), np.float32)})
    assert outputs["prompt_embeds"].dtype == np.float32 and outputs["attention_mask"].dtype == np.int64
    assert outputs["prompt_embeds"].shape[:2] == outputs["attention_mask"].shape


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_async_infer_gives_the_outputs_when_the_model_answers_once(
    server: Server, protocol: Protocol
) -> None:
    async with AsyncClient(url_of(server, protocol), protocol) as client:
        outputs = await client.infer("wan_t2v_prompt", {"prompt": np.array([[b"A lake"]], np.object_)})
    assert outputs["prompt_embeds"].ndim == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_models_and_their_usual_sizes_are_told_when_they_are_asked_for(
    server: Server, protocol: Protocol
) -> None:
    async with AsyncClient(url_of(server, protocol), protocol) as aio:
        told = await aio.model_parameters("wan_t2v")
        models = await aio.models()
    with Client(url_of(server, protocol), protocol) as client:
        assert client.model_parameters("wan_t2v") == told
        assert client.models() == models
        assert {"wan_t2v", "wan_t2v_tokenizer", "slipway_cancel"} <= set(models)
        with pytest.raises(NotReady, match="nope"):
            client.model_parameters("nope")
    sizes = {name: told[f"usual_{name}"] for name in ("frames", "height", "width")}
    assert sizes == {"frames": "17", "height": "64", "width": "64"}
    ranges = {name: told[f"range_{name}"] for name in sizes}
    assert ranges == {"frames": "1:33", "height": "32:128", "width": "32:128"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_readiness_is_told_when_asked(server: Server, protocol: Protocol) -> None:
    async with AsyncClient(url_of(server, protocol), protocol) as aio:
        assert await aio.is_ready() and await aio.is_ready("wan_t2v") and not await aio.is_ready("nope")
        assert "prompt" in {tensor.name for tensor in (await aio.model_metadata("wan_t2v")).inputs}
    with Client(f"127.0.0.1:{unused_port()}", protocol) as nobody:
        assert not nobody.is_ready()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_loop_stops_when_the_iterator_is_closed(
    gated_server: tuple[Server, Gate], protocol: Protocol
) -> None:
    with Client(url_of(gated_server[0], protocol), protocol) as client, stops_early(gated_server):
        events = client.generate(request(**LONG))
        next(events)
        events.close()


def test_loop_stops_when_the_consumer_fails(gated_server: tuple[Server, Gate]) -> None:
    def consume(client: Client) -> None:
        for _ in client.generate(request(**LONG)):
            raise ZeroDivisionError

    with (
        Client(gated_server[0].grpc_url) as client,
        stops_early(gated_server),
        pytest.raises(ZeroDivisionError),
    ):
        consume(client)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_loop_stops_when_the_task_is_cancelled(
    gated_server: tuple[Server, Gate], protocol: Protocol
) -> None:
    started = asyncio.Event()

    async def consume() -> None:
        async with AsyncClient(url_of(gated_server[0], protocol), protocol) as client:
            async for _ in client.generate(request(**LONG)):
                started.set()

    with stops_early(gated_server):
        task = asyncio.create_task(consume())
        await asyncio.wait_for(started.wait(), 120)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_loop_stops_when_the_async_iterator_is_left(gated_server: tuple[Server, Gate]) -> None:
    async with AsyncClient(gated_server[0].grpc_url) as client:
        with stops_early(gated_server):
            async with aclosing(client.generate(request(**LONG))) as events:
                async for _ in events:
                    break


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_generation_ends_in_time_when_its_deadline_is_short(
    gated_server: tuple[Server, Gate], protocol: Protocol
) -> None:
    with (
        Client(url_of(gated_server[0], protocol), protocol) as client,
        stops_early(gated_server),
        pytest.raises(DeadlineExceeded),
    ):
        list(client.generate(request(**LONG), timeout_s=0.1))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_client_gives_up_when_nobody_listens(protocol: Protocol) -> None:
    url = f"127.0.0.1:{unused_port()}"
    with Client(url, protocol, retry=RetryPolicy(budget_s=0.5)) as client, pytest.raises(NotReady, match=url):
        list(client.generate(request()))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_client_gives_up_when_the_server_never_answers(protocol: Protocol) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(url, protocol, retry=ONCE, connect_timeout_s=0.5) as client,
            pytest.raises(NotReady, match=url),
        ):
            list(client.generate(request()))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_client_succeeds_when_the_server_comes_late(server: Server, protocol: Protocol) -> None:
    port, relays = unused_port(), []
    late = threading.Timer(0.5, lambda: relays.append(Relay(port, url_of(server, protocol))))
    late.start()
    with Client(f"127.0.0.1:{port}", protocol, retry=RetryPolicy(budget_s=300, max_s=0.5)) as client:
        *_, result = client.generate(request())
    late.join()
    relays[0].cut()
    assert isinstance(result, Video)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_generation_is_not_repeated_when_the_connection_is_lost_after_a_response(
    gated_server: tuple[Server, Gate], protocol: Protocol
) -> None:
    port = unused_port()
    relay = Relay(port, url_of(gated_server[0], protocol))
    with (
        Client(f"127.0.0.1:{port}", protocol, retry=RetryPolicy(budget_s=100_000)) as client,
        stops_early(gated_server),
    ):
        events = client.generate(request(**LONG))
        next(events)
        relay.cut()
        with pytest.raises(NotReady):
            list(events)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_generate_writes_a_video_and_one_line_when_run(
    server: Server, protocol: Protocol, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.mp4"
    flags = ["--frames", "5", "--size", "64x32", "--steps", "3", "--guidance_scale", "3"]
    place = ["--output", str(output), "--url", url_of(server, protocol)]  # which tells by itself
    assert root.run(["generate", "wan_t2v", "A lake", *flags, *place]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{output}: 5 frames, 64x32, 16 fps") and out.count("\n") == 1
    assert err.count("\n") == 3
    assert b"ftyp" in output.read_bytes()[:16]
    assert list(tmp_path.iterdir()) == [output]


def test_generate_prints_one_document_when_json_is_asked_and_replaces_a_file_only_when_told(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.mp4"
    output.write_text("before")
    monkeypatch.setenv("SLIPWAY_URL", server.grpc_url)
    flags = ["--frames", "5", "--size", "64x32", "--steps", "2", "--output", str(output), "--json"]
    assert root.run(["generate", "wan_t2v", "A lake", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == "" and f"--output must be a file that does not exist yet, got {output}" in err
    assert output.read_text() == "before"
    assert root.run(["generate", "wan_t2v", "A lake", *flags, "--overwrite"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert 0 < document.pop("elapsed_s") < 600
    assert document == {
        "model": "wan_t2v",
        "output": str(output),
        "content": {"frames": 5, "width": 64, "height": 32, "fps": 16},
        "cache_hit_rate": None,
        "moves": 0,
        "steps_repeated": 0,
        "same_engine": True,
        "stopped_step": None,
        "state": None,
        "draft": None,
    }
    assert "step 2/2" in err
    assert b"ftyp" in output.read_bytes()[:16]


def test_ready_prints_one_document_when_json_is_asked(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root.run(["ready", "--url", server.grpc_url, "--model", "wan_t2v", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "url": server.grpc_url,
        "protocol": "grpc",
        "model": "wan_t2v",
        "state": "ready",
    }
    assert root.run(["ready", "--url", server.grpc_url, "--live", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "live"
    assert root.run(["ready", "--url", server.grpc_url, "--model", "nothing", "--json"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("scheme", ["", "SPOKEN://"])
def test_ready_takes_either_port(server: Server, protocol: Protocol, scheme: str) -> None:
    url = scheme.replace("SPOKEN", protocol) + url_of(server, protocol)
    assert address_of(url).protocol == protocol
    assert root.run(["ready", "--url", url]) == 0
    assert root.run(["ready", "--url", url, "--model", "nothing"]) == 1


def test_generate_writes_frames_in_silence_when_quiet(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.npy"
    flags = ["--frames", "5", "--size", "64x32", "--steps", "2", "--quiet", "--output", str(output)]
    assert root.run(["generate", "wan_t2v", "A lake", *flags, "--url", server.grpc_url]) == 0
    assert capsys.readouterr() == ("", "")
    assert np.load(output).shape == (5, 32, 64, 3)


def test_generate_shows_a_bar_when_stderr_is_a_terminal(server: Server, tmp_path: Path) -> None:
    terminal, its_end = pty.openpty()
    command = [
        sys.executable, "-m", "slipway_cli.root", "generate", "wan_t2v", "A lake", "--frames", "33",
        "--size", "128x128", "--steps", "20", "--output", str(tmp_path / "v.mp4"), "--url", server.grpc_url,
    ]  # fmt: skip
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its_end, env=environment) as process:
        os.close(its_end)
        shown = b""
        with suppress(OSError):  # the terminal's other end has gone
            while data := os.read(terminal, 65536):
                shown += data
        assert process.stdout is not None
        result = process.stdout.read()
    os.close(terminal)
    assert process.returncode == 0
    assert b"elapsed" in shown and b"remaining" in shown and b"/20" in shown
    assert result.count(b"\n") == 1 and b"\x1b" not in result
