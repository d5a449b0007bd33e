"""`slipway play`: keys that go out block by block, frames that come back, and the terminal between."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from slipway_cli.play.terminal import render, select_keys, without_escapes
from slipway_cli.play.worlds import PlayedBlock, play
from slipway_cli.root import run
from slipway_serving.families.matrix_game.keys import VOCABULARIES
from slipway_serving.families.matrix_game.request import BlockMade, TempleRunActions
from slipway_serving.protocol.errors import Overloaded, Unrecoverable
from slipway_serving.protocol.events import Event, FramesPart

KNOWN = VOCABULARIES["universal"]
PICTURE = np.random.default_rng(1).integers(0, 256, (48, 80, 3), np.uint8)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "first.png"
    Image.fromarray(PICTURE).save(path)
    return path


class World:
    """Answers as a server does, with frames of one grey for each block; ends after `blocks`."""

    def __init__(self, blocks: int = 3, events: list[Event] | None = None) -> None:
        self.turns: list[Any] = []
        self.open = False
        self._blocks, self._events = blocks, events

    @contextmanager
    def session(self, request: Any) -> Iterator[World]:
        self.open = True
        yield self
        self.open = False

    def step(self, turn: Any) -> Iterator[Event]:
        self.turns.append(turn)
        if self._events is not None:
            yield from self._events
            return
        index = len(self.turns) - 1
        if turn.rebase:
            self._blocks += 2
        frames = np.full((4, 48, 80, 3), 40 * index, np.uint8)
        yield FramesPart(frames[:1], 4 * index, 0.1)
        yield FramesPart(frames[1:], 4 * index + 1, 0.2)
        yield BlockMade(index, 4 * index + 4, 4 * (self._blocks - index - 1), 0.3, 0.2, 0.1)


def played(world: World, mode: str, keys: list[str], *, endless: bool = False) -> list[PlayedBlock]:
    session: Any = world
    return list(play(session, mode, keys, endless=endless))


def test_each_block_takes_the_keys_of_its_turn_when_a_world_is_played() -> None:
    world = World()
    blocks = played(world, "templerun", ["w", "", "d"])
    assert [block.keys for block in blocks] == ["w", "", "d"]
    assert all(isinstance(turn, TempleRunActions) for turn in world.turns)
    assert [turn.keyboard_cond[0].argmax() for turn in world.turns] == [1, 0, 6]
    assert [block.frames.shape for block in blocks] == [(4, 48, 80, 3)] * 3
    assert (
        "[w]" in blocks[0].status
        and "denoise 300, decode 200, commit 100), 8 frames left" in blocks[0].status
    )


def test_frames_are_shown_as_they_come_when_a_world_is_played() -> None:
    seen: list[int] = []
    session: Any = World()
    blocks = play(session, "universal", "ww", lambda frames: seen.append(len(frames)))
    next(blocks)
    assert seen == [1, 3]
    next(blocks)
    assert seen == [1, 3, 1, 3]


def test_play_stops_when_the_world_ends_before_the_keys() -> None:
    assert len(played(World(blocks=2), "universal", ["w"] * 9)) == 2


def test_play_goes_on_from_an_earlier_place_when_it_is_endless() -> None:
    world = World(blocks=2)
    assert len(played(world, "universal", ["w"] * 7, endless=True)) == 7
    assert [turn.rebase for turn in world.turns] == [False, False, True, False, True, False, True]


@pytest.mark.parametrize("events", [[], [BlockMade(0, 9, 1, 0.0, 0.0, 0.0)]])
def test_block_is_an_error_when_its_frames_or_its_end_are_missing(events: list[Event]) -> None:
    with pytest.raises(Unrecoverable, match="a turn must return frames and BlockMade, got"):
        played(World(events=events), "universal", ["w"])


@pytest.mark.parametrize(
    ("pressed", "keys"),
    [
        ("", ""),
        ("w", "w"),
        ("wwww", "w"),
        ("WL", "wl"),
        ("ws", "s"),
        ("wasd", "sd"),
        ("?x1w", "w"),
        ("jlj", "j"),
    ],
)
def test_latest_key_is_held_when_two_cannot_be(pressed: str, keys: str) -> None:
    assert select_keys(pressed, KNOWN) == keys


@pytest.mark.parametrize(
    ("text", "characters"),
    [
        ("wl", "wl"),
        ("w\x1b[Al", "wl"),
        ("\x1bOP\x1b[3~", ""),
        ("w\x1b", None),
        ("\x1b[A\x1b", None),
        ("", ""),
    ],
)
def test_play_ends_by_escape_and_not_by_an_arrow(text: str, characters: str | None) -> None:
    assert without_escapes(text) == characters


@pytest.mark.parametrize(
    ("columns", "lines", "size"), [(40, 100, (40, 12)), (200, 6, (20, 6)), (1, 1, (1, 1))]
)
def test_picture_fits_the_terminal_and_has_two_pixels_to_a_character(
    columns: int, lines: int, size: tuple[int, int]
) -> None:
    rows = render(PICTURE, columns, lines).split("\n")
    cells = [re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m▀", row) for row in rows]
    assert {len(row) for row in cells} == {size[0]}
    assert len(cells) == size[1]
    shown = np.array(cells, int)
    pixels = np.asarray(Image.fromarray(PICTURE).resize((size[0], 2 * size[1])))
    np.testing.assert_array_equal(shown[..., :3], pixels[::2])
    np.testing.assert_array_equal(shown[..., 3:], pixels[1::2])


def test_video_has_every_frame_when_a_script_is_played(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world, output = World(), tmp_path / "out.mp4"
    monkeypatch.setattr("slipway_client.Client", lambda url, protocol, tls: _entered(world))
    line = ["play", "matrix_game", "--image", str(image), "--actions", "w(wl)d", "--output", str(output)]
    assert run(line) == 0
    said = capsys.readouterr()
    assert said.out == f"{output}\n"
    assert [text.split(" fps")[0].rpartition("] ")[0] for text in said.err.splitlines()] == [
        "1 of 3: [w", "2 of 3: [wl", "3 of 3: [d",
    ]  # fmt: skip
    with av.open(str(output)) as video:
        assert video.streams.video[0].average_rate == 25
        assert sum(1 for _ in video.decode(video=0)) == 12
    assert not world.open
    assert run(line) == 2
    assert f"--output must be a file that does not exist yet, got {output}" in capsys.readouterr().err
    world = World()
    assert run([*line, "--overwrite"]) == 0


@contextmanager
def _entered(world: World) -> Iterator[World]:
    yield world


def test_no_file_is_left_when_the_server_refuses_a_block(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: World, turn: Any) -> Iterator[Event]:
        if self.turns:
            raise Overloaded("busy")
        self.turns.append(turn)
        yield FramesPart(PICTURE[None], 0, 0.1)
        yield BlockMade(0, 1, 9, 0.0, 0.0, 0.0)

    monkeypatch.setattr(World, "step", refuse)
    monkeypatch.setattr("slipway_client.Client", lambda url, protocol, tls: _entered(World()))
    output = tmp_path / "out.mp4"
    line = ["play", "matrix_game", "--image", str(image), "--actions", "ww", "--output", str(output)]
    assert run(line) == 1
    assert sorted(tmp_path.iterdir()) == [image]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--actions": None}, "either --actions or --interactive must be given, got neither"),
        ({"--output": None}, "--output or --snapshot must be given with --actions, got neither"),
        ({"--output": "out.avi"}, "--output must end in .mp4 and be in a folder that exists, got out.avi"),
        ({"--image": "none.png"}, "--image must be a file that exists, got none.png"),
        ({"--image": None}, "either --image or --restore must be given, got neither"),
        ({"--image": None, "--restore": "no.world"}, "--restore must be a file that exists, got no.world"),
        ({"--image": None, "--restore": __file__}, "restore must be a part of a snapshot, got 14 bytes"),
        ({"--snapshot": "none/w.world"}, "--snapshot must be in a folder that exists, got none/w.world"),
        ({"--snapshot": __file__}, f"--snapshot must be a file that does not exist yet, got {__file__}"),
        ({"--mode": "flying"}, "mode must be one of universal, gta_drive, templerun, got 'flying'"),
        ({"--actions": "w%"}, "actions: block 2 must be keys of universal"),
        ({"--actions": "@none.txt"}, "--actions must name a text file after @, got @none.txt"),
        ({"--image": __file__}, "test_play.py: a picture must be a PNG, JPEG, WebP, GIF, BMP or TIFF file"),
        ({"family": "wan_t2v"}, "family must be matrix_game, got 'wan_t2v'"),
    ],
)
def test_command_is_refused_before_any_work_when_an_option_is_wrong(
    change: dict[str, str | None], message: str, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"--image": str(image), "--actions": "w", "--output": "out.mp4", **change}
    family = options.pop("family", "matrix_game")
    line = [text for name, value in options.items() if value is not None for text in (name, value)]
    assert run(["play", str(family), *line]) == 2
    assert message in capsys.readouterr().err


def test_interactive_is_refused_when_there_is_no_terminal(
    image: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slipway_client.Client", lambda url, protocol, tls: _entered(World()))
    assert run(["play", "matrix_game", "--image", str(image), "--interactive"]) == 2
    assert "--interactive must be used in a terminal, got a file or a pipe" in capsys.readouterr().err
