"""`slipway generate` and `slipway continue` for videos that stop: files, Ctrl-C, drafts, moves, documents."""

from __future__ import annotations

import io
import json
import signal
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scripted_videos import (
    FRAMES,
    VIDEO,
    WAN,
    Events,
    Server,
    generate,
    served,
    sheet,
    state_of,
    stopped,
)

from slipway_cli import root
from slipway_cli.server_options import server_of
from slipway_cli.videos.sheet import join_sheets
from slipway_client import Checkpoint, Frames, Moved
from slipway_serving.protocol.diffusion.stopping import Continued, DenoisingRequest
from slipway_serving.protocol.errors import InvalidRequest, Malformed, NotReady
from slipway_serving.protocol.events import Progress


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    return served(monkeypatch, tmp_path)


def test_schedule_is_the_models_when_it_has_one_for_few_steps(server: Server) -> None:
    server.parameters = {"usual_steps": "4", "usual_guidance_scale": "1.0", "usual_frames": "5"}
    command = ["generate", "wan_t2v", "a lake", "--url", "grpc://server:8001", "--quiet", "--output", "v.mp4"]
    assert root.run(command) == 0
    assert root.run([*command, "--overwrite", "--steps", "8"]) == 0
    found = [(each.steps, each.guidance_scale, each.frames) for each in server.requests]
    assert found == [(4, 1.0, 81), (8, 1.0, 81)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--stop-after 3",
            "--state must be given with --stop-after, since the work is lost without the state",
        ),
        ("--draft d.png", "--draft must come with --stop-after, got d.png alone; try --stop-after 10"),
        (
            "--stop-after 3 --state s.bin",
            "--state must end in .slipway, got s.bin; try --state state.slipway",
        ),
        ("--state none/s.slipway", "--state must be in a folder that exists, got none/s.slipway"),
        (
            "--stop-after 3 --state old.slipway",
            "--state must be a file that does not exist yet, got old.slipway",
        ),
        (
            "--stop-after 3 --state s.slipway --draft d.gif",
            "--draft must end in .mp4 or .png or .npy, got d.gif",
        ),
        (
            "--stop-after 3 --state s.slipway --draft old.png",
            "--draft must be a file that does not exist yet",
        ),
        ("--drafts 2 --draft d.png --state s.slipway", "--stop-after must be given with --drafts, got none"),
        (
            "--drafts 2 --stop-after 3",
            "--state must be given with --drafts, got none; try --state state.slipway",
        ),
        (
            "--drafts 2 --stop-after 3 --state s.slipway --draft d.mp4",
            "--draft must end in .png with --drafts, got d.mp4; try --draft sheet.png",
        ),
        (
            "--drafts 2 --stop-after 3 --state old.slipway --draft d.png",
            "--state must be a file that does not exist yet, got old-2.slipway",
        ),
        (
            "--drafts 2 --seed 4294967295 --stop-after 3 --state s.slipway --draft d.png",
            "seed must be 0 to 4294967295, got 4294967296",
        ),
        ("--priority now", "priority must be one of urgent, normal, low, got 'now'"),
    ],
)
def test_option_is_refused_before_anything_is_sent_when_it_breaks_a_rule(
    flags: str, message: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old.slipway", "old-2.slipway", "old.png"):
        Path(name).touch()
    assert generate(*flags.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1
    assert server.requests == []


@pytest.mark.parametrize(
    ("draft", "event", "fields"),
    [
        ("d.mp4", replace(VIDEO, draft_step=3), {"draft": "video", "output": "video"}),
        ("d.npy", Frames(FRAMES, 1.0, draft_step=3), {"draft": "video", "output": "frames"}),
        ("d.png", sheet(), {"draft": "sheet", "output": "video"}),
    ],
)
def test_state_and_draft_are_written_and_no_video_when_a_video_is_stopped(
    draft: str, event: Any, fields: dict[str, str], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = lambda request, stop: iter([Progress(1, 8, 0.1), event, stopped()])
    assert generate("--stop-after", "3", "--state", "s.slipway", "--draft", draft) == 0
    (request,) = server.requests
    assert {name: getattr(request, name) for name in fields} == fields
    assert request.stop_after_step == 3
    assert sorted(path.name for path in Path().iterdir()) == sorted([draft, "s.slipway"])
    assert Path("s.slipway").read_bytes() == state_of(WAN) or Path("s.slipway").stat().st_size
    assert stat.S_IMODE(Path("s.slipway").stat().st_mode) == 0o600
    assert Path(draft).stat().st_size
    out = capsys.readouterr().out
    assert out.startswith("s.slipway: stopped after step 3 of 8 in ") and "no video is written" in out
    assert f"draft in {draft}" in out and "`slipway continue s.slipway` goes on" in out


def test_document_names_state_and_stop_when_json_is_asked(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = lambda request, stop: iter([stopped()])
    assert generate("--stop-after", "3", "--state", "s.slipway", "--json", "--quiet") == 0
    document = json.loads(capsys.readouterr().out)
    assert document.pop("elapsed_s") >= 0
    assert document == {
        "model": "wan_t2v",
        "output": None,
        "content": None,
        "cache_hit_rate": None,
        "moves": 0,
        "steps_repeated": 0,
        "same_engine": True,
        "stopped_step": 3,
        "state": "s.slipway",
        "draft": None,
    }


def test_command_fails_when_a_stop_comes_without_its_state_or_draft(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = lambda request, stop: iter([replace(stopped(), state=None)])
    assert generate("--stop-after", "3", "--state", "s.slipway") == 1
    assert "a stopped video must come with its state, got none" in capsys.readouterr().err
    server.script = lambda request, stop: iter([stopped()])
    assert generate("--stop-after", "3", "--state", "s.slipway", "--draft", "d.mp4") == 1
    assert "the server must send a draft, got none" in capsys.readouterr().err
    assert Path("s.slipway").exists()


def test_first_interrupt_stops_the_video_and_keeps_its_state_when_state_is_given(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(request: DenoisingRequest, stop: threading.Event) -> Events:
        yield Progress(1, 8, 0.1)
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        yield stopped("caller", 2)

    server.script = script
    before = signal.getsignal(signal.SIGINT)
    assert generate("--state", "s.slipway") == 130
    err = capsys.readouterr().err
    assert "stopping after this step; the state goes to s.slipway; Ctrl-C again cancels\n" in err
    assert (
        "error: wan_t2v: stopped after step 2 of 8; its state is in s.slipway; try `slipway continue" in err
    )
    assert Path("s.slipway").exists() and not Path("out.mp4").exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_second_interrupt_cancels_and_names_the_last_state_when_there_is_one(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(request: DenoisingRequest, stop: threading.Event) -> Events:
        yield Checkpoint(state_of(WAN, 2), 2)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        yield VIDEO

    server.script = script
    assert generate("--state", "s.slipway", "--checkpoint-every-steps", "2") == 130
    err = capsys.readouterr().err
    assert "wan_t2v: cancelled, here and on the server; after step 2, its state is in s.slipway" in err


def test_interrupt_cancels_when_no_state_is_kept(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def script(request: DenoisingRequest, stop: threading.Event) -> Events:
        yield Progress(1, 8, 0.1)
        signal.raise_signal(signal.SIGINT)
        yield VIDEO

    server.script = script
    assert generate("--quiet") == 130
    assert capsys.readouterr().err == "error: wan_t2v: cancelled, here and on the server\n"


def test_error_names_the_last_checkpoint_when_the_server_is_lost(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(request: DenoisingRequest, stop: threading.Event) -> Events:
        yield Checkpoint(state_of(WAN, 2), 2)
        yield Checkpoint(state_of(WAN, 4), 4)
        raise NotReady("no server answers")

    server.script = script
    assert generate("--checkpoint-every-steps", "2", "--state", "s.slipway", "--quiet") == 1
    assert capsys.readouterr().err == (
        "error: no server answers; after step 4, its state is in s.slipway; try `slipway continue s.slipway"
        " --output out.mp4`\n"
    )
    assert Path("s.slipway").stat().st_size == len(state_of(WAN, 4))
    assert [each.checkpoint_every_steps for each in server.requests] == [2]


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (
            ["--state", "s.slipway"],
            "its state is in s.slipway; try `slipway continue s.slipway --output out.mp4`",
        ),
        ([], "its state was not kept; try --state state.slipway, or --url with several addresses"),
    ],
)
def test_command_exits_1_and_says_how_to_go_on_when_the_only_server_shuts_down(
    flags: list[str], hint: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = lambda request, stop: iter([stopped("shutdown", 5)])
    assert generate(*flags, "--quiet") == 1
    err = capsys.readouterr().err
    assert "grpc://server:8001 shut down and stopped the video after step 5 of 8" in err
    assert hint in err and err.count("\n") == 1
    assert Path("s.slipway").exists() is bool(flags)


def test_moves_and_phases_are_told_and_counted_when_they_happen(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(request: DenoisingRequest, stop: threading.Event) -> Events:
        yield Progress(0, 0, 0.0, phase="waiting")
        yield Progress(0, 0, 5.0, phase="waiting")
        yield Progress(4, 8, 6.0)
        yield Progress(4, 8, 6.1, phase="set aside")
        yield Moved("a:1", "b:1", 4, "shutdown")
        yield Continued(4, True, "onnxruntime fp32")
        yield Progress(6, 8, 7.0)
        yield Moved("b:1", "b:1", 4, "unavailable")
        yield Continued(4, False, "onnxruntime fp32 -> torch fp32")
        yield VIDEO

    server.script = script
    assert generate("--json") == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert {name: document[name] for name in ("moves", "steps_repeated", "same_engine", "state")} == {
        "moves": 2,
        "steps_repeated": 2,
        "same_engine": False,
        "state": None,
    }
    assert document["output"] == "out.mp4" and document["content"]["frames"] == 17
    assert err.count("waiting: ") == 1 and err.count("set aside: ") == 1
    assert "a:1 shuts down; the video continues on b:1 after step 4\n" in err
    assert "b:1 does not answer any more; the video continues on b:1 again after step 4; 2 steps are" in err
    assert "another engine continues after step 4 (onnxruntime fp32 -> torch fp32)" in err


def test_drafts_have_seeds_states_and_cells_of_their_own_when_several_are_made(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = lambda request, stop: iter([sheet(), stopped()])
    flags = ["--stop-after", "3", "--state", "s.slipway", "--draft", "d.png", "--drafts", "3", "--json"]
    assert generate(*flags) == 0
    assert [request.seed for request in server.requests] == [3, 4, 5]
    assert {request.draft for request in server.requests} == {"sheet"}
    names = ["d.png", "s-1.slipway", "s-2.slipway", "s-3.slipway"]
    assert sorted(path.name for path in Path().iterdir()) == names
    document = json.loads(capsys.readouterr().out)
    found = [(each["number"], each["seed"], each["state"]) for each in document["drafts"]]
    assert found == [(1, 3, "s-1.slipway"), (2, 4, "s-2.slipway"), (3, 5, "s-3.slipway")]
    with Image.open("d.png") as picture:
        assert picture.size == (2 * 90 + 8, 2 * 60 + 8)


def test_number_is_drawn_on_each_cell_when_sheets_are_joined() -> None:
    with Image.open(io.BytesIO(join_sheets([sheet().sheet] * 4, "wan_t2v"))) as joined:
        cells = [np.asarray(joined.crop((x, y, x + 30, y + 20))) for y in (0, 68) for x in (0, 98)]
    assert all((cell > 200).all(axis=2).any() for cell in cells)
    assert len({cell.tobytes() for cell in cells}) == 4


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n", b"<svg/>"])
def test_sheet_is_refused_when_it_is_no_picture(content: bytes) -> None:
    with pytest.raises(Malformed, match="wan_t2v: a draft must be"):
        join_sheets([sheet().sheet, content], "wan_t2v")


@pytest.mark.parametrize(
    ("url", "protocol", "expected"),
    [
        ("grpc://a:1,grpc://b:2", None, ("grpc://a:1,grpc://b:2", "grpc")),
        ("a:1, http://b:2", None, ("a:1,http://b:2", "http")),
        ("a:1,b:2", "grpc", ("a:1,b:2", "grpc")),
        ("127.0.0.1:1,127.0.0.1:1", None, ("127.0.0.1:1,127.0.0.1:1", "grpc")),
        ("grpc://a:1", None, ("grpc://a:1", "grpc")),
    ],
)
def test_addresses_share_one_protocol_when_there_are_several(
    url: str, protocol: Any, expected: tuple[str, str]
) -> None:
    assert server_of(url, protocol) == expected


@pytest.mark.parametrize("url", ["grpc://a:1,http://b:2", "grpc://a:1,", "grpc://a:1,ftp://b:2"])
def test_addresses_are_refused_when_they_do_not_fit_together(url: str) -> None:
    with pytest.raises(InvalidRequest, match="url: "):
        server_of(url, None)


def test_sigint_stays_ignored_when_the_process_ignores_it(server: Server) -> None:
    def script(request: DenoisingRequest, stop: threading.Event) -> Events:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        yield VIDEO

    server.script = script
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert generate("--state", "s.slipway", "--quiet") == 0
    finally:
        signal.signal(signal.SIGINT, before)
