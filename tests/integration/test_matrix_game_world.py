"""Worlds of `matrix_game`, exported from the tiny checkpoint and served by a real Triton."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import av
import httpx
import numpy as np
import pytest
from load_environment import assert_all_answered, load_environment
from matrix_game_reference import world_frames
from prometheus_client.parser import text_string_to_metric_families
from server_fixtures import wait_until
from tiny_exports import checkpoint_once
from wan_reference import psnr
from world_fixtures import MODEL, exported_world

from slipway_client import AsyncClient, Client, Event, FramesPart, InvalidRequest, Overloaded
from slipway_serving.families.matrix_game.facts import FACTS_FILE
from slipway_serving.families.matrix_game.picture import crop_and_resize
from slipway_serving.families.matrix_game.request import BlockMade, UniversalActions, UniversalRequest
from slipway_serving.protocol import images
from slipway_serving.protocol.requests import encode
from slipway_serving.protocol.snapshots.parts import parse
from slipway_serving.protocol.turns import Turn
from slipway_serving.runtime.graph import Graph
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.triton.server import Server, ServerConfig
from slipway_serving.video.fragments import Mp4Fragment
from slipway_serving.video.jpeg import JpegFrame

pytestmark = pytest.mark.long

PICTURE = np.random.default_rng(3).integers(0, 256, (70, 90, 3), np.uint8)
BLOCKS = 10


@pytest.fixture(scope="module")
def checkpoint(shared: Path) -> Path:
    return checkpoint_once(shared, "matrix_game")


@pytest.fixture(scope="module")
def repository(shared: Path) -> Path:
    """The models of a `universal` world. Read only: copy it to change it."""
    return exported_world(shared)


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


def opening(**fields: Any) -> UniversalRequest:
    return UniversalRequest(**{"image": PICTURE, "seed": 7, **fields})


def done(block: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the actions of a block, a row for each frame."""
    random, frames = np.random.default_rng([seed, block]), 12 if block else 9
    return {
        "mouse_cond": random.uniform(-0.1, 0.1, (frames, 2)).astype(np.float32),
        "keyboard_cond": random.integers(0, 2, (frames, 4)).astype(np.float32),
    }


def steering(block: int, seed: int = 0, *, rebase: bool = False) -> UniversalActions:
    return UniversalActions(**done(block, seed), rebase=rebase)


def contents(parts: Iterable[bytes]) -> list[bytes]:
    """Return what parts carry, whatever they say of their snapshot."""
    return [bytes(parse(part, MODEL)[1]) for part in parts]


def frames_of(events: list[Event]) -> np.ndarray:
    return np.concatenate([event.pixels for event in events if isinstance(event, FramesPart)])


def measured(server: Server, name: str, **labels: str) -> float:
    """Return a metric of the world's model, all its series together."""
    text = httpx.get(server.metrics_url).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    wanted = {"model": MODEL} | labels
    return sum(
        sample.value for sample in samples if sample.name == name and wanted.items() <= sample.labels.items()
    )


def open_worlds(server: Server) -> float:
    return measured(server, "slipway_sessions_open")


def no_world_is_held(server: Server) -> None:
    wait_until(lambda: open_worlds(server) == 0, "no world is held")


@dataclass(frozen=True)
class Played:
    """A world that was played for some blocks, and for one more.

    Attributes:
        blocks: the events of each block.
        snapshot: its parts before the last of them.
        refused: what the server said to a rebase that came too early.
    """

    blocks: list[list[Event]]
    snapshot: list[bytes]
    refused: str


@pytest.fixture(scope="module")
def played(server: Server) -> Played:
    with Client(server.grpc_url) as client, client.session(opening()) as session:
        blocks = [list(session.step(steering(0)))]
        with pytest.raises(InvalidRequest) as refused:
            list(session.step(steering(1, rebase=True)))
        blocks += [list(session.step(steering(block))) for block in range(1, BLOCKS)]
        snapshot = list(session.snapshot())
        blocks.append(list(session.step(steering(BLOCKS))))
    return Played(blocks, snapshot, str(refused.value))


def test_frames_equal_pytorchs_when_a_world_is_steered(played: Played, checkpoint: Path) -> None:
    for block, events in enumerate(played.blocks):
        *parts, made = events
        places = [part.first_frame for part in parts if isinstance(part, FramesPart)]
        first = 12 * block - 3 if block else 0
        assert places == ([0, 1, 5] if block == 0 else [first, first + 4, first + 8])
        assert isinstance(made, BlockMade)
        assert (made.block, made.frames_made, made.frames_left) == (block, 12 * block + 9, 4080 - 12 * block)
        assert (made.picture_s is None) == (block > 0)
    frames = np.concatenate([frames_of(events) for events in played.blocks[:BLOCKS]])
    # Blocks from the third on no longer see the first.
    actions = [done(block) for block in range(BLOCKS)]
    expected = world_frames(checkpoint, "universal", crop_and_resize(PICTURE, (48, 80)), 7, actions)
    assert frames.shape == expected.shape == (117, 48, 80, 3)
    assert psnr(frames, expected) > 60
    assert expected.std() > 20


def test_world_goes_on_bit_equal_when_it_is_moved_to_another_server(
    played: Played, repository: Path, server: Server
) -> None:
    last = BLOCKS

    async def moved_again(url: str) -> list[Event]:
        async with AsyncClient(url) as client:
            async with await client.restore(UniversalRequest, played.snapshot) as first:
                parts = [part async for part in first.snapshot()]
            async with await client.restore(UniversalRequest, parts) as session:
                return [event async for event in session.step(steering(last))]

    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as other:
        with (
            Client(other.http_url, "http") as client,
            client.restore(UniversalRequest, played.snapshot) as session,
        ):
            assert contents(session.snapshot()) == contents(played.snapshot)
            moved = list(session.step(steering(last)))
        again = asyncio.run(moved_again(other.grpc_url))
    for events in (moved, again):
        np.testing.assert_array_equal(frames_of(events), frames_of(played.blocks[last]))
        assert isinstance(events[-1], BlockMade) and events[-1].block == last
    no_world_is_held(server)


def test_picture_stays_when_a_world_is_rebased(played: Played, server: Server) -> None:
    assert (
        "rebase must be requested only after block 7, got it after block 1; try without rebase"
        in played.refused
    )
    last = BLOCKS
    with Client(server.grpc_url) as client, client.restore(UniversalRequest, played.snapshot) as session:
        *_, made = events = list(session.step(steering(last, rebase=True)))
        assert len(list(session.step(steering(last + 1)))) == len(events)
    assert isinstance(made, BlockMade)
    assert (made.block, made.frames_made) == (last, 12 * last + 9)
    assert made.frames_left > 4080 - 12 * last
    assert psnr(frames_of(events), frames_of(played.blocks[last])) > 60


def test_snapshot_is_refused_when_it_is_not_whole(played: Played, server: Server) -> None:
    with Client(server.grpc_url) as client:
        with pytest.raises(InvalidRequest, match="restore must be a complete part of"):
            client.restore(UniversalRequest, [played.snapshot[0][:-1]])
        with pytest.raises(InvalidRequest, match="restore must receive all parts of a snapshot, got none"):
            client.restore(UniversalRequest, [])
        changed = played.snapshot[0].replace(MODEL.encode(), b"matrix_game_universum")
        with pytest.raises(InvalidRequest, match="got one with a wrong checksum"):
            client.restore(UniversalRequest, [changed])
    no_world_is_held(server)


def test_worlds_equal_those_alone_when_they_interleave(server: Server) -> None:
    def alone(seed: int) -> np.ndarray:
        with Client(server.grpc_url) as client, client.session(opening(seed=seed)) as session:
            return frames_of([event for block in range(4) for event in session.step(steering(block, seed))])

    seeds = (1, 2)
    with Client(server.grpc_url) as client:
        sessions = {seed: client.session(opening(seed=seed)) for seed in seeds}
        seen: dict[int, list[Event]] = {seed: [] for seed in seeds}
        for block in range(4):
            for seed in seeds:
                seen[seed] += sessions[seed].step(steering(block, seed))
        for session in sessions.values():
            session.close()
    for seed in seeds:
        np.testing.assert_array_equal(frames_of(seen[seed]), alone(seed))
    assert (frames_of(seen[1]) != frames_of(seen[2])).any()


def test_blocks_are_counted_by_their_parts_when_a_world_is_made(server: Server) -> None:
    def counts() -> dict[str, float]:
        parts = ("picture", "denoise", "decode", "commit")
        counted = {part: measured(server, "slipway_block_seconds_count", part=part) for part in parts}
        others = ("slipway_first_frame_seconds_count", "slipway_blocks_late_total", "slipway_frames_total")
        return counted | {name: measured(server, name) for name in others}

    no_world_is_held(server)
    before: dict[str, float] = {}

    def rest() -> bool:
        nonlocal before
        time.sleep(3)
        earlier, before = before, counts()
        return earlier == before

    # What was made before may be told a little later.
    wait_until(rest, "the counters of earlier worlds rest")
    with Client(server.grpc_url) as client, client.session(opening()) as session:
        for block in range(2):
            list(session.step(steering(block)))
    # Nothing is late where no rate was given.
    grown = dict(zip(before, (1, 2, 2, 2, 1, 0, 21), strict=True))
    wait_until(
        lambda: {name: now - before[name] for name, now in counts().items()} == grown,
        "two blocks more",
    )


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_frames_are_the_same_when_they_come_as_jpeg_files(
    server: Server, protocol: Literal["grpc", "http"]
) -> None:
    shown: dict[str, np.ndarray] = {}
    url = server.grpc_url if protocol == "grpc" else server.http_url
    for output in ("frames", "jpeg"):
        with Client(url, protocol) as client, client.session(opening(output=output)) as session:
            events = list(session.step(steering(0)))
        files = [event for event in events if isinstance(event, JpegFrame)]
        shown[output] = np.stack([images.pixels(file.data) for file in files]) if files else frames_of(events)
        assert [file.first_frame for file in files] == (list(range(9)) if output == "jpeg" else [])
    # Noise of a random decoder is the worst that a JPEG can be asked for.
    error = np.abs(shown["frames"].astype(int) - shown["jpeg"]).mean()
    assert error < 20


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_fragments_of_a_world_are_one_file_when_they_are_joined(
    server: Server, protocol: Literal["grpc", "http"]
) -> None:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    with Client(url, protocol) as client, client.session(opening(output="mp4", fps=20)) as session:
        events = [event for block in (0, 1) for event in session.step(steering(block))]
    fragments = [event for event in events if isinstance(event, Mp4Fragment)]
    assert [fragment.first_frame for fragment in fragments] == [0, 1, 5, 9, 13, 17]
    with av.open(io.BytesIO(b"".join(fragment.data for fragment in fragments))) as container:
        assert [round(frame.time * 20) for frame in container.decode(video=0)] == list(range(21))


def test_world_is_freed_when_it_ends_or_its_turn_is_left(server: Server) -> None:
    with Client(server.grpc_url) as client:
        with client.session(opening()) as session:
            list(session.step(steering(0)))
            wait_until(lambda: open_worlds(server) == 1, "the world is held")
        no_world_is_held(server)
        with client.session(opening()) as session, closing(session.step(steering(0))) as events:
            next(events)
        no_world_is_held(server)
        assert client.is_ready(MODEL)


def test_world_goes_on_when_its_id_is_begun_again_until_it_is_ended(server: Server) -> None:
    with Client(server.grpc_url) as client:
        session = client.session(opening())
        list(session.step(steering(0)))
        other = client.session(opening(), session_id=session.id)
        with pytest.raises(InvalidRequest, match="is already open"):
            list(other.step(steering(0)))
        assert list(session.step(steering(1)))
        other.close()
        with pytest.raises(InvalidRequest, match=f"{MODEL}: session .* is not open"):
            list(session.step(steering(2)))


class CarelessActions(UniversalActions):
    """Looks at nothing."""

    def __post_init__(self) -> None:
        """Check nothing."""


class CarelessRequest(UniversalRequest):
    """Looks at nothing."""

    def __post_init__(self) -> None:
        """Check nothing."""


def test_world_goes_on_when_a_turn_is_refused_by_field(server: Server) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"keyboard_cond": np.zeros((12, 7), np.float32)}, "keyboard_cond"),
        ({"keyboard_cond": np.full((12, 4), 2, np.float32)}, "keyboard_cond must be within 0 to 1, got 2"),
        ({"mouse_cond": np.full((12, 2), np.inf, np.float32)}, "mouse_cond must be finite, got inf"),
        ({"mouse_cond": np.zeros((9, 2), np.float32)}, "must have the same frames"),
        (
            done(0),
            r"keyboard_cond must have 12 rows, one for each frame of the block, or 1 row for all, got shape"
            r" \[9, 4\]",
        ),
    ]
    with Client(server.grpc_url) as client, client.session(opening()) as session:
        seen = list(session.step(steering(0)))
        for fields, problem in wrong:
            with pytest.raises(InvalidRequest, match=problem):
                list(session.step(CarelessActions(**(done(1) | fields))))
        seen += session.step(steering(1))
    with Client(server.grpc_url) as client, client.session(opening()) as session:
        unharmed = [event for block in range(2) for event in session.step(steering(block))]
    np.testing.assert_array_equal(frames_of(seen), frames_of(unharmed))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"image": b"nothing"}, f"{MODEL}: image must be a PNG, JPEG or WebP file"),
        ({"image": np.zeros((8, 8, 3), np.uint8)}, "image must be 16 to 4096 px a side, got 8x8"),
        ({"output": "video"}, "output must be one of frames, jpeg"),
        ({"seed": -1}, "seed must be 0 to 4294967295, got -1"),
    ],
)
def test_world_is_refused_by_field_when_it_opens(
    server: Server, fields: dict[str, Any], problem: str
) -> None:
    careless = CarelessRequest(**({"image": PICTURE, "seed": 7} | fields))
    with (
        Client(server.grpc_url) as client,
        client.session(careless) as session,
        pytest.raises(InvalidRequest, match=problem),
    ):
        list(session.step(steering(0)))
    no_world_is_held(server)


@pytest.fixture
def small(repository: Path, tmp_path: Path) -> Iterator[InProcessModels]:
    """The models in this process: 2 worlds at a time, of 6 latent frames each."""
    copy = tmp_path / "copy"
    shutil.copytree(repository, copy)
    facts = copy / MODEL / "1" / FACTS_FILE
    content = json.loads(facts.read_text())
    facts.write_text(json.dumps(content | {"latents": content["latents"] | {"positions": 7}}))
    config = copy / MODEL / "config.pbtxt"
    text = config.read_text()
    config.write_text(text.replace('string_value: "8"', 'string_value: "2"'))
    assert config.read_text() != text
    models = InProcessModels(copy, threads=1)
    yield models
    models.close()


def answered(models: InProcessModels, block: int, world: str) -> int:
    """Return the number of answers to a turn."""
    tensors = encode(steering(block)) | ({} if block else encode(opening()))
    return len(list(models.stream(MODEL, tensors, [], turn=Turn(world, start=block == 0))))


def test_world_ends_and_others_go_on_when_its_places_are_used_up(small: InProcessModels) -> None:
    for world in ("a", "b"):
        # A part for each latent frame, and what there is to say of the block.
        assert answered(small, 0, world) == 4
    assert answered(small, 1, "a") == 4
    with pytest.raises(
        InvalidRequest, match="block must be at most 2, the last block of the world, got 3 after 21 frames"
    ):
        answered(small, 2, "a")
    assert answered(small, 1, "b") == 4
    with pytest.raises(Overloaded, match="all 2 sessions are in use"):
        answered(small, 0, "c")
    assert not list(small.stream(MODEL, {}, [], turn=Turn("a", end=True)))
    assert answered(small, 0, "c") == 4
    with pytest.raises(Overloaded, match="all 2 sessions are in use"):
        answered(small, 0, "d")


def test_all_graphs_have_run_when_the_model_is_ready(
    small: InProcessModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, int]] = []
    run = Graph.run

    def noted(graph: Graph, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        ran.append((graph.filename, int(np.max(tensors.get("start", 0)))))
        return run(graph, tensors, *args, **kwargs)

    monkeypatch.setattr(Graph, "run", noted)
    small.load(MODEL)
    graphs = {("cross_attention.onnx", 0), ("first.onnx", 0), ("next.onnx", 0)}
    assert set(ran) == graphs | {("block_denoiser.onnx", 0), ("block_denoiser.onnx", 3), ("rebase.onnx", 0)}


def test_worlds_are_played_when_locust_plays_them(server: Server, shared: Path, tmp_path: Path) -> None:
    # Jitter is that of a session's second block, and the first one took five seconds on a busy machine.
    line = "--family matrix_game --users 2 --seconds 10 --session-s 10 --think-s 0.1"
    done = load_environment(shared).load(tmp_path, server.grpc_url, line)
    measures = ("first_frame_s", "jitter_s", "stall_s", "queue_s", "service_s")
    assert_all_answered(done, MODEL, *measures)
    no_world_is_held(server)
