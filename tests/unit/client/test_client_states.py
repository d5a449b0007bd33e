"""States of stopped videos: the requests that continue them, and their files."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_peer import PROMPT, state

from slipway_client import (
    ImageToVideoRequest,
    InvalidRequest,
    TextToVideoRequest,
    continued_request,
    read_state_file,
    write_state,
)

STATE = state(2, "step").to_bytes()


def test_request_continues_with_the_fields_of_the_stopped_one_and_its_own_stop_and_delivery() -> None:
    kept = state(2, fps=12, stop_after_step=2, draft="video", checkpoint_every_steps=1, preview=True)
    data = kept.to_bytes()
    continued = continued_request(TextToVideoRequest, data)
    assert continued == TextToVideoRequest(prompt=PROMPT, steps=4, seed=7, fps=12, continue_from=data)


def test_request_continues_with_changed_fields_when_they_may_change() -> None:
    changes: dict[str, Any] = {
        "stop_after_step": 3, "draft": "sheet", "priority": "urgent", "output": "video", "timeout_s": 9.0,
        "prompt": "a sea", "guidance_scale": 2.0, "steps_seen": 3,
    }  # fmt: skip
    continued = continued_request(TextToVideoRequest, STATE, **changes)
    assert {name: getattr(continued, name) for name in changes} == changes
    assert (continued.seed, continued.continue_from) == (7, STATE)


def test_picture_of_the_stopped_request_is_kept_as_bytes() -> None:
    data = state(2, model="framepack_i2v", image=np.frombuffer(_png(), np.uint8)).to_bytes()
    assert continued_request(ImageToVideoRequest, data).image == _png()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 8}, "wan_t2v: seed must be one of the fields that may change"),
        ({"steps": 9, "seed": 8}, "seed must be one of .* | steps must be one of"),
        ({"nonsense": 1}, "nonsense must be one of the fields that may change"),
        ({"continue_from": STATE}, "continue_from must be one of the fields that may change"),
        ({"priority": "high"}, "priority must be one of urgent, normal, low"),
        ({"draft": "video"}, "draft must come with stop_after_step"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_change_is_refused_when_the_field_must_not_change_or_breaks_its_rule(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        continued_request(TextToVideoRequest, STATE, **changes)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"nonsense", "wan_t2v: continue_from must be a part of a snapshot, got 8 bytes"),
        (STATE[:-1], "wan_t2v: continue_from must be a complete part"),
        (STATE[:-1] + bytes([STATE[-1] ^ 1]), "wan_t2v: continue_from must be an unchanged part"),
        (state(2, model="other").to_bytes(), "must be the state of a video of wan_t2v, got one of 'other'"),
        (state(2, prompt=None).to_bytes(), "must contain the fields of a TextToVideoRequest, got others"),
        (state(2, seed=[1]).to_bytes(), "wan_t2v: (seed|continue_from) must"),
    ],
    ids=["nonsense", "cut", "changed", "another model", "no prompt", "a list for a number"],
)
def test_state_is_refused_when_it_is_damaged_or_of_another_model(data: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        continued_request(TextToVideoRequest, data)


def test_file_is_readable_by_its_owner_only_and_has_the_state(tmp_path: Path) -> None:
    path = tmp_path / "lake.slipway"
    path.write_text("old")
    path.chmod(0o644)
    write_state(path, STATE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_state_file(path) == STATE
    assert [*tmp_path.iterdir()] == [path]


def test_file_is_unchanged_when_the_state_cannot_be_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lake.slipway"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InvalidRequest, match=f"{re.escape(str(path))}: a state must .* No space left"):
        write_state(path, STATE)
    assert (path.read_text(), [*tmp_path.iterdir()]) == ("old", [path])


def test_file_is_refused_when_its_folder_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "lake.slipway"
    with pytest.raises(InvalidRequest, match="a state must be written to a writable file, got .*No such"):
        write_state(path, STATE)
    with pytest.raises(InvalidRequest, match="lake.slipway: a state must be a readable file, got .*No such"):
        read_state_file(path)


def test_file_is_refused_when_it_is_no_whole_state(tmp_path: Path) -> None:
    path = tmp_path / "lake.slipway"
    path.write_bytes(STATE[: len(STATE) // 2])
    with pytest.raises(InvalidRequest, match=f"{re.escape(str(path))}: continue_from must"):
        read_state_file(path)


def _png() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, format="PNG")
    return file.getvalue()
