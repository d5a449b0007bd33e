"""`slipway continue`: what it sends, what it refuses, and where it stops again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripted_videos import (
    FRAMES,
    WAN,
    Server,
    continue_video,
    served,
    state_of,
    stopped,
)

from slipway_client import FramesPart
from slipway_client.states import join_state
from slipway_serving.families.framepack_i2v.request import ImageToVideoRequest
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol import images
from slipway_serving.protocol.snapshots.denoising_states import DenoisingState, Origin


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    return served(monkeypatch, tmp_path)


def test_continued_request_has_the_fields_of_the_state_and_the_changes_when_sent(server: Server) -> None:
    Path("state.slipway").write_bytes(state_of(WAN))
    assert continue_video("--prompt", "a red lake", "--fps", "8", "--output", "o.mp4", "--quiet") == 0
    (request,) = server.requests
    assert isinstance(request, TextToVideoRequest)
    assert (request.prompt, request.fps, request.seed, request.frames) == ("a red lake", 8, 3, 17)
    assert (request.stop_after_step, request.output) == (None, "video")
    assert request.continue_from == Path("state.slipway").read_bytes()
    assert Path("o.mp4").read_bytes() == b"mp4"


def test_draft_is_continued_by_its_number_when_picked(server: Server) -> None:
    Path("s-3.slipway").write_bytes(state_of(replace(WAN, seed=5)))
    assert continue_video("s.slipway", "--pick", "3", "--quiet") == 0
    assert server.requests[0].seed == 5


def test_continued_video_stops_again_when_asked(server: Server) -> None:
    Path("s.slipway").write_bytes(state_of(WAN))
    server.script = lambda request, stop: iter([stopped("step", 6)])
    assert continue_video("s.slipway", "--stop-after", "6", "--state", "s.slipway") == 2
    flags = ["--stop-after", "6", "--state", "s.slipway", "--overwrite", "--priority", "low", "--quiet"]
    assert continue_video("s.slipway", *flags) == 0
    (request,) = server.requests
    assert (request.stop_after_step, request.priority) == (6, "low")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["none.slipway"], "none.slipway"),
        (["damaged.slipway"], "damaged.slipway"),
        (
            ["other.slipway"],
            "continue: STATE must be of a model of an installed family (wan_t2v, framepack_i2v)",
        ),
        (
            ["framepack.slipway", "--negative-prompt", "x"],
            "negative_prompt must be left out for a video of framepack",
        ),
        (
            ["framepack.slipway", "--fps", "8"],
            "fps must be left out for a video of framepack_i2v, got 8; try a change",
        ),
        (["wan.slipway", "--guidance-scale", "-1"], "guidance_scale must be 0 to 1000, got -1"),
        (["wan.slipway", "--stop-after", "5"], "continue: --state must be given with --stop-after"),
        (["wan.slipway", "--output", "o.avi"], "continue: --output must end in .mp4 or .npy, got o.avi"),
    ],
)
def test_continue_refuses_before_anything_is_sent_when_state_or_option_is_invalid(
    flags: list[str], message: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = np.zeros((32, 48, 3), np.uint8)
    framepack = ImageToVideoRequest(image=picture, prompt="a boat", height=32, width=48, seconds=1.2)
    Path("framepack.slipway").write_bytes(state_of(framepack))
    Path("wan.slipway").write_bytes(state_of(WAN))
    Path("damaged.slipway").write_bytes(state_of(WAN)[:-5])
    other = DenoisingState("other_model", Origin("c", "f", {}), {}, "step", 3, 8, {})
    Path("other.slipway").write_bytes(other.to_bytes())
    assert continue_video(*flags) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1
    assert server.requests == []


def test_state_is_continued_in_the_form_of_its_delivered_parts_when_the_video_stops_again(
    server: Server,
) -> None:
    part = FramesPart(FRAMES, 0, 1.0)
    state = join_state(state_of(WAN), [part], "wan_t2v")
    Path("s.slipway").write_bytes(state)
    server.script = lambda request, stop: iter([stopped(step=6)])
    assert continue_video("s.slipway", "--stop-after", "6", "--state", "t.slipway", "--quiet") == 0
    (request,) = server.requests
    assert (request.output, request.continue_from) == ("frames", state)


def test_framepack_state_is_continued_with_its_picture_when_its_prompt_changes(server: Server) -> None:
    picture = np.zeros((32, 48, 3), np.uint8)
    # A server receives the bytes of a file.
    file = images.to_bytes(picture)
    request = ImageToVideoRequest(image=file, prompt="a boat", height=32, width=48, seconds=1.2)
    Path("s.slipway").write_bytes(state_of(request))
    assert continue_video("s.slipway", "--prompt", "a ship", "--quiet") == 0
    (sent,) = server.requests
    assert isinstance(sent, ImageToVideoRequest) and sent.prompt == "a ship"
    assert sent.size_px == (32, 48)
