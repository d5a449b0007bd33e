"""A family of another distribution, from its checkpoint to frames: nothing of Slipway knows it."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_fixtures import wait_until
from toy_fixtures import (
    ACTIONS,
    PICTURE,
    PROTOCOLS,
    expected_frames,
    installed_toy,
    slipway,
    toy_repository,
    url_of,
)

from slipway_client import AsyncClient, Client, FramesPart, InvalidRequest, Overloaded, Progress
from slipway_serving.triton.server import Server, ServerConfig


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The distribution, installed by pip into a folder on the import path."""
    with installed_toy(tmp_path_factory.mktemp("toy")) as target:
        yield target


@pytest.fixture(scope="module")
def repository(toy: Path, shared: Path) -> Path:
    """The tiny checkpoint's repository, by the command line."""
    repository = toy_repository(shared)
    points = [
        row["point"] for row in json.loads((repository / "toy_world/manifest.json").read_text())["parity"]
    ]
    assert sum("of 6, run 3 of 3, which commits" in point for point in points) == 6
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


def opening(**fields: Any) -> Any:
    from slipway_toy.request import ToyWorldRequest

    return ToyWorldRequest(**{"image": PICTURE, "seed": 7, **fields})


def steering(block: int) -> Any:
    from slipway_toy.request import Steering

    return Steering(ACTIONS[block])


def gauge(server: Server, name: str) -> float:
    text = httpx.get(server.metrics_url).text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return sum(s.value for s in samples if s.name == name and s.labels.get("model") == "toy_world")


def test_family_and_its_command_are_listed_when_it_is_installed(toy: Path) -> None:
    listed = slipway("families").stdout
    assert "toy: a small world that is steered block by block\n  from        slipway-toy 0.3.0\n" in listed
    assert "toy_world" in slipway("generate", "--help").stdout
    told = slipway("generate", "toy_world", "--help").stdout
    for flag in ("--image", "--seed", "--actions", "--turns", "--output"):
        assert flag in told


@pytest.mark.long
def test_family_adds_file_roles_and_a_size_to_its_export_command(toy: Path, tmp_path: Path) -> None:
    from slipway_toy.family import FAMILY, WEIGHTS

    own = {"--denoiser-weights", "--vae-weights", "--latent-height"}
    assert own <= set(slipway("export", "toy", "--help").stdout.split())
    assert not own & set(slipway("export", "airimu", "--help").stdout.split())
    FAMILY.presets["tiny"].write(tmp_path / "checkpoint", 0)
    files = []
    for part in ("denoiser", "vae"):
        folder = tmp_path / "checkpoint" / part
        shutil.move(folder / "config.json", tmp_path / f"{part}.json")
        files += [f"--{part}-weights", shutil.move(folder / WEIGHTS, tmp_path / f"{part}.safetensors")]
    target = ("--repository", tmp_path / "models")
    done = slipway("export", "toy", *files, "--latent-height", "5", *target, "--component", "decoder")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "models/toy_decoder/manifest.json").read_text())
    assert manifest["planned_axes"]["height"] == [2, 5, 8]
    refused = slipway("export", "toy", *files[:2], *target)
    assert refused.returncode == 2
    assert "toy: --vae-weights must be given with --denoiser-weights, got none" in refused.stderr


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_frames_equal_the_whole_network_when_a_world_is_steered(
    server: Server, protocol: Literal["grpc", "http"]
) -> None:
    with Client(url_of(server, protocol), protocol) as client, client.session(opening()) as session:
        blocks = [list(session.step(steering(block))) for block in range(5)]
    for index, events in enumerate(blocks):
        steps = [(event.step, event.steps) for event in events if isinstance(event, Progress)]
        parts = [event for event in events if isinstance(event, FramesPart)]
        assert steps == [(1, 2), (2, 2)]
        (part,) = parts
        assert (part.first_frame, part.final, part.frames_total) == (2 * index, True, None)
        assert (part.height, part.width) == (24, 32)
    frames = np.concatenate([e.pixels for events in blocks for e in events if isinstance(e, FramesPart)])
    expected = expected_frames(5)
    assert frames.shape == expected.shape
    # Rounding to uint8 may fall to the other side of a half.
    assert np.abs(frames.astype(int) - expected).max() <= 1 and (frames == expected).mean() > 0.99


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_async_session_gives_the_same_frames_when_steered_alike(
    server: Server, protocol: Literal["grpc", "http"]
) -> None:
    url = url_of(server, protocol)
    async with AsyncClient(url, protocol) as client, client.session(opening()) as session:
        events = [event for block in (0, 1) async for event in session.step(steering(block))]
    parts = [event for event in events if isinstance(event, FramesPart)]
    frames = np.concatenate([part.pixels for part in parts])
    assert np.abs(frames.astype(int) - expected_frames(2)).max() <= 1


def test_worlds_do_not_disturb_each_other_when_they_take_turns(server: Server) -> None:
    with Client(server.grpc_url) as client, client.session(opening()) as a, client.session(opening()) as b:
        seen: dict[str, list[Any]] = {"a": [], "b": []}
        for block in range(2):
            for name, session in (("a", a), ("b", b)):
                seen[name] += [e for e in session.step(steering(block)) if isinstance(e, FramesPart)]
    frames = {name: np.concatenate([part.frames for part in parts]) for name, parts in seen.items()}
    np.testing.assert_array_equal(frames["a"], frames["b"])


def test_generate_writes_the_frames_of_all_turns_when_typed(server: Server, tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(PICTURE).save(tmp_path / "first.png")
    np.save(tmp_path / "actions.npy", ACTIONS)
    done = slipway(
        "generate", "toy_world", "--image", tmp_path / "first.png", "--actions", tmp_path / "actions.npy",
        "--turns", 3, "--seed", 7, "--output", tmp_path / "world.npy", "--url", server.grpc_url,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "6 frames, 32x24" in done.stdout
    frames = np.load(tmp_path / "world.npy")
    assert np.abs(frames.astype(int) - expected_frames(3)).max() <= 1


def test_world_is_freed_when_its_turn_is_left(server: Server) -> None:
    with Client(server.grpc_url) as client:
        with client.session(opening()) as session, closing(session.step(steering(0))) as events:
            next(events)
        wait_until(lambda: gauge(server, "slipway_sessions_open") == 0, "no world is held")
        assert client.is_ready("toy_world")


def test_world_is_freed_when_the_body_fails(server: Server) -> None:
    with Client(server.grpc_url) as client:
        with pytest.raises(ZeroDivisionError), client.session(opening()) as session:
            list(session.step(steering(0)))
            raise ZeroDivisionError
        again = client.session(opening(), session_id=session.id)
        wait_until(lambda: gauge(server, "slipway_sessions_open") == 0, "no world is held")
        with again:
            assert [e.first_frame for e in again.step(steering(0)) if isinstance(e, FramesPart)] == [0]


async def test_world_is_freed_when_the_task_is_cancelled(server: Server) -> None:
    begun = asyncio.Event()

    async def steer() -> None:
        async with AsyncClient(server.grpc_url) as client, client.session(opening()) as session:
            while True:
                async for _ in session.step(steering(0)):
                    begun.set()

    task = asyncio.create_task(steer())
    await asyncio.wait_for(begun.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(
        wait_until, lambda: gauge(server, "slipway_sessions_open") == 0, "no world is held"
    )


def test_idle_worlds_expire_and_further_ones_are_refused(repository: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(repository, copy)
    config = copy / "toy_world/config.pbtxt"
    text = config.read_text().replace('string_value: "60"', 'string_value: "10"')
    config.write_text(text)
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    with Server(ServerConfig(copy, **ports)) as server, Client(server.grpc_url) as client:
        held: list[Any] = []

        def is_full() -> bool:
            world = client.session(opening())
            try:
                list(world.step(steering(0)))
            except Overloaded as error:
                assert "all 4 sessions are in use" in str(error)
                return True
            held.append(world)
            return False

        def has_room() -> bool:
            try:
                with client.session(opening()) as world:
                    list(world.step(steering(0)))
            except Overloaded:
                return False
            return True

        wait_until(is_full, "a further world is refused", 120)
        wait_until(has_room, "idle worlds are freed", 120)
        # The first is the one that nobody went on with for longest.
        with pytest.raises(InvalidRequest, match="is not open"):
            list(held[0].step(steering(1)))


def png(array: np.ndarray, mode: str = "RGB", **options: Any) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array).convert(mode).save(file, format="PNG", **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"image": PICTURE[:20]}, "toy_world: image must be multiples of 8 px a side, got 32x20"),
        ({"image": PICTURE[:8, :8]}, "image must be 16 to 64 px a side, got 8x8"),
        (
            {"image": png(PICTURE, "RGBA")},
            "image must be RGB or grey of 8 bits without .* got mode RGBA",
        ),
        ({"image": png(PICTURE)[:60]}, "image must be"),
        ({"image": b"nothing"}, "image must be a PNG, JPEG or WebP file"),
        ({"seed": -1}, "seed must be 0 to 4294967295, got -1"),
        ({"output": "video"}, "output must be one of frames"),
    ],
    ids=["multiple", "small", "transparent", "cut off", "no picture", "seed", "form"],
)
def test_opening_is_refused_by_field_when_a_rule_is_broken(
    toy: Path, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        opening(**fields)


@pytest.mark.parametrize(
    ("actions", "problem"),
    [
        (np.zeros((2, 3), np.float32), r"actions must be float32 \[2, 4\], got float32 \[2, 3\]"),
        (np.zeros((2, 4)), r"actions must be float32 \[2, 4\], got float64"),
        (np.full((2, 4), 1.5, np.float32), "actions must be within -1 to 1, got 1.5"),
        (np.full((2, 4), np.nan, np.float32), "actions must be finite, got nan"),
    ],
)
def test_turn_is_refused_by_field_when_a_rule_is_broken(toy: Path, actions: np.ndarray, problem: str) -> None:
    from slipway_toy.request import Steering

    with pytest.raises(InvalidRequest, match=problem):
        Steering(actions)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_server_refuses_by_field_when_the_client_does_not_look(
    server: Server, protocol: Literal["grpc", "http"]
) -> None:
    class Careless(type(opening())):  # type: ignore[misc]
        def __post_init__(self) -> None:
            """Check nothing."""

    damaged_exif = png(PICTURE, exif=b"Exif\0\0no TIFF header")
    with Client(url_of(server, protocol), protocol) as client:
        for image, problem in (
            (PICTURE[:20], "image must be multiples of 8"),
            (damaged_exif, "image must be a picture with readable EXIF data"),
        ):
            session = client.session(Careless(image))
            with pytest.raises(InvalidRequest, match=problem), session:
                list(session.step(steering(0)))
        assert client.is_ready("toy_world")
