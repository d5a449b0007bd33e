"""A pipeline of another distribution, whose videos stop and continue without a line of its own for that."""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image
from toy_fixtures import (
    PICTURE,
    PROTOCOLS,
    expected_frames,
    installed_toy,
    toy_repository,
    url_of,
)

from slipway_client import Client, Event, FramesPart, Progress
from slipway_serving.diffusion.videos.loop import Boundary, denoise_video, finished_video
from slipway_serving.protocol.diffusion.stopping import ContactSheet, Continued, StatePart, Stopped
from slipway_serving.protocol.events import SET_ASIDE
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import Recorder
from slipway_serving.triton.server import Server, ServerConfig

Protocol = Literal["grpc", "http"]
# More blocks than the window has places for.
BLOCKS, STEPS = 4, 8
LONG = 250
UNSTEERED = np.zeros((BLOCKS, 2, 4), np.float32)
WHERE = "toy_video"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The distribution, installed by pip into a folder on the import path."""
    with installed_toy(tmp_path_factory.mktemp("toy")) as target:
        yield target


@pytest.fixture(scope="module")
def repository(toy: Path, shared: Path) -> Path:
    """The tiny checkpoint's repository, by the command line."""
    return toy_repository(shared)


@pytest.fixture(scope="module")
def servers(repository: Path) -> Iterator[tuple[Server, Server]]:
    """Two servers of the same repository."""
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    with Server(ServerConfig(repository, **ports)) as one, Server(ServerConfig(repository, **ports)) as other:
        yield one, other


def video(**fields: Any) -> Any:
    from slipway_toy.video_request import ToyVideoRequest

    return ToyVideoRequest(**{"image": PICTURE, "seed": 7, "blocks": BLOCKS, **fields})


def run(server: Server, protocol: Protocol, **fields: Any) -> list[Event]:
    with Client(url_of(server, protocol), protocol) as client:
        return list(client.stream(video(**fields)))


def frames_of(*parts: list[Event]) -> np.ndarray:
    """Return the frames of the events of requests that continue each other; none may be sent twice."""
    found = [event for events in parts for event in events if isinstance(event, FramesPart)]
    joined = np.concatenate([part.pixels for part in found])
    firsts = [part.first_frame for part in found]
    assert firsts == list(np.cumsum([0, *(len(part.pixels) for part in found)])[:-1])
    assert {part.frames_total for part in found} == {len(joined)}
    return joined


def state_of(events: list[Event]) -> bytes:
    parts = [event for event in events if isinstance(event, StatePart)]
    assert [part.state_part for part in parts] == list(range(parts[0].state_parts))
    return b"".join(part.state for part in parts)


@pytest.fixture(scope="module")
def undisturbed(servers: tuple[Server, Server]) -> np.ndarray:
    """Frames of a video that nothing disturbs, which are those of the whole network."""
    frames = frames_of(run(servers[0], "grpc"))
    expected = expected_frames(BLOCKS, UNSTEERED)
    assert frames.shape == expected.shape
    # Rounding to uint8 may fall to the other side of a half.
    assert np.abs(frames.astype(int) - expected).max() <= 1 and (frames == expected).mean() > 0.99
    return frames


def test_pipeline_has_no_line_about_what_it_inherits(toy: Path) -> None:
    from slipway_toy import video, video_request

    base = "from slipway_serving.protocol.diffusion.stopping import DenoisingRequest"
    for module in (video, video_request):
        own = inspect.getsource(module).replace(base, "")
        assert re.findall(r"(?i)\w*(?:stop|continu|state|checkpoint|priorit)\w*", own) == []


@pytest.mark.parametrize("after", range(1, STEPS + 1))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_frames_are_equal_when_a_video_is_stopped_and_continued(
    servers: tuple[Server, Server], undisturbed: np.ndarray, protocol: Protocol, after: int
) -> None:
    stopped = run(servers[0], protocol, stop_after_step=after)
    end = stopped[-1]
    assert isinstance(end, Stopped)
    assert (end.stop_reason, end.stopped_step, end.steps) == ("step", after, STEPS)
    for server in servers:
        continued = run(server, protocol, continue_from=state_of(stopped))
        first, steps = continued[0], [event.step for event in continued if isinstance(event, Progress)]
        assert isinstance(first, Continued)
        assert (first.continued_step, first.same_engine) == (after, True)
        assert steps == list(range(after + 1, STEPS + 1))
        np.testing.assert_array_equal(frames_of(stopped, continued), undisturbed)


def test_frames_are_equal_when_a_video_is_stopped_after_each_step(
    servers: tuple[Server, Server], undisturbed: np.ndarray
) -> None:
    parts = [run(servers[0], "grpc", stop_after_step=1)]
    for after in range(2, STEPS + 1):
        state = state_of(parts[-1])
        parts.append(run(servers[after % 2], "grpc", stop_after_step=after, continue_from=state))
    parts.append(run(servers[1], "grpc", continue_from=state_of(parts[-1])))
    np.testing.assert_array_equal(frames_of(*parts), undisturbed)


def test_frames_are_equal_when_continued_from_a_state_of_a_running_video(
    servers: tuple[Server, Server], undisturbed: np.ndarray
) -> None:
    events = run(servers[0], "grpc", checkpoint_every_steps=2)
    states = [(index, event) for index, event in enumerate(events) if isinstance(event, StatePart)]
    assert [(event.state_step, event.state_parts) for _, event in states] == [(2, 1), (4, 1), (6, 1), (8, 1)]
    np.testing.assert_array_equal(frames_of(events), undisturbed)
    for index, event in states:
        continued = run(servers[1], "grpc", continue_from=event.state)
        np.testing.assert_array_equal(frames_of(events[:index], continued), undisturbed)


def test_draft_shows_the_block_under_way_when_asked_for(servers: tuple[Server, Server]) -> None:
    *_, draft, _, end = run(servers[0], "grpc", stop_after_step=3, draft="video")
    assert isinstance(draft, FramesPart) and isinstance(end, Stopped)
    assert (draft.draft_step, draft.pixels.shape) == (3, (2, *PICTURE.shape))
    *_, sheet, _, _ = run(servers[0], "grpc", stop_after_step=3, draft="sheet")
    assert isinstance(sheet, ContactSheet)
    with Image.open(io.BytesIO(sheet.sheet)) as picture:
        np.testing.assert_array_equal(np.array(picture), np.concatenate([*draft.pixels], axis=1))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_both_videos_are_right_when_an_urgent_one_sets_a_low_one_aside(
    servers: tuple[Server, Server], undisturbed: np.ndarray, protocol: Protocol
) -> None:
    server, _ = servers
    url = url_of(server, protocol)
    with ThreadPoolExecutor(3) as pool:
        # Each instance starts its program with its first request; at once, they go to all three.
        for warmed in [pool.submit(run, server, protocol, blocks=LONG) for _ in range(3)]:
            alone = frames_of(warmed.result())
        low: list[Event] = []
        urgent = None
        with (
            Client(url, protocol) as client,
            closing(client.stream(video(blocks=LONG, priority="low"))) as events,
        ):
            for event in events:
                low.append(event)
                if urgent is None and isinstance(event, Progress) and event.step:
                    urgent = pool.submit(run, server, protocol, priority="urgent")
                if isinstance(event, Progress) and event.step == 2 * LONG:
                    assert urgent is not None and urgent.done()
        assert urgent is not None
        first = urgent.result()
    assert SET_ASIDE in {event.phase for event in low if isinstance(event, Progress)}
    assert SET_ASIDE not in {event.phase for event in first if isinstance(event, Progress)}
    np.testing.assert_array_equal(frames_of(first), undisturbed)
    np.testing.assert_array_equal(frames_of(low), alone)


def test_frames_are_equal_in_process_when_continued_from_any_boundary(
    repository: Path,
) -> None:
    from slipway_toy.facts import Facts
    from slipway_toy.video import ToyVideo

    models, facts = InProcessModels(repository), Facts.read(repository / WHERE / "1")

    def items(kept: Any = None) -> Iterator[Event | Boundary]:
        interruption = Interruption(WHERE, lambda: False, None)
        return denoise_video(
            lambda tools: ToyVideo(video(), facts, tools),
            7,
            None,
            models,
            interruption,
            Recorder(),
            WHERE,
            kept,
        )

    before: list[Event] = []
    boundaries: list[tuple[int, int, dict[str, Any]]] = []
    for item in items():
        if isinstance(item, Boundary):
            boundaries.append((item.step, len(before), item.kept()))
        else:
            before.append(item)
    whole = frames_of(before)
    # Each block has a boundary before it, too.
    assert [step for step, _, _ in boundaries] == [0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8]
    for _, count, kept in boundaries:
        after = list(finished_video(items(kept)))
        np.testing.assert_array_equal(frames_of(before[:count], after), whole)
