"""Commands that are measured as processes, and the rows that a real-size run keeps and prints."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from slipway_benchmarks.pipelines import real_size
from slipway_benchmarks.pipelines.real_size import (
    RealSizeOptions,
    Row,
    markdown,
    print_real_size,
    real_size_json,
)
from slipway_benchmarks.processes import Ran, Tree, measured, serving
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable

HELD = 200 * 10**6
# Holds so much until its input ends.
HOLDS = f"import sys; held = bytearray({HELD}); held[::4096] = bytes(len(held[::4096])); sys.stdin.read()"


def test_memory_counts_what_children_hold_when_it_is_sampled() -> None:
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDS!r}])"
    with (
        subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE) as process,
        closing(Tree(process.pid)) as tree,
    ):
        deadline = time.monotonic() + 60
        while tree.now_bytes < HELD and time.monotonic() < deadline:
            time.sleep(0.05)
        assert HELD < tree.peak_bytes < 2 * HELD
        assert tree.cpu_s() > 0
        process.communicate()


def test_command_is_measured_when_it_ends(tmp_path: Path) -> None:
    ran = measured([sys.executable, "-c", "print('done')"], "slipway it", tmp_path / "log")
    assert ran.command == "slipway it"
    assert ran.time_s > 0
    assert ran.cpu_s > 0
    assert (tmp_path / "log").read_text() == "done\n"


def test_last_words_are_told_when_a_command_fails(tmp_path: Path) -> None:
    with pytest.raises(Unrecoverable, match=r"(?s)`slipway it` ended with 3:\n.*no room.*log: .*/log"):
        measured([sys.executable, "-c", "print('no room'); exit(3)"], "slipway it", tmp_path / "log")


def test_reason_is_told_when_a_server_does_not_become_ready(tmp_path: Path) -> None:
    with (
        pytest.raises(Unrecoverable, match=r"(?s)must become ready, got:\n.*repository"),
        serving(tmp_path / "nothing", 10, tmp_path / "log"),
    ):
        pass


def test_part_is_refused_when_there_is_none_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"part must be one of checkpoint, text-encoder, .* got decoder"):
        RealSizeOptions(tmp_path, parts=("decoder",))


def test_axes_end_at_the_video_when_it_is_exported(tmp_path: Path) -> None:
    options = RealSizeOptions(tmp_path, frames=9, height=256, width=32)
    sides = {"token_height": (4, 16, 16), "token_width": (1, 2, 2)}
    assert options.axes == {"latent_frames": (1, 3, 3), **sides}


def row(what: str, command: str, **found: float | None) -> Row:
    return Row(what, Ran(command, 12.4, 20.6, 2_500_000_000, 1.25), "2026-11-22 08:00", found=found)


def ran_parts(options: RealSizeOptions, monkeypatch: pytest.MonkeyPatch) -> real_size.RealSizeResult:
    parts = {
        "checkpoint": lambda _: iter([replace(row("write", "slipway checkpoint"), disk_bytes=10**9)]),
        "diffusers": lambda _: iter([row("compare", "python -m x", fp32_psnr_db=81.23, int8_psnr_db=None)]),
    }
    monkeypatch.setattr(real_size, "PARTS", parts)
    return real_size.run(options, lambda _: None)


def test_rows_of_other_parts_stay_when_one_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = RealSizeOptions(tmp_path / "work")
    whole = ran_parts(options, monkeypatch)
    kept = json.loads((tmp_path / "work" / "rows.json").read_text())
    assert list(kept) == ["checkpoint", "diffusers"]
    again = ran_parts(replace(options, parts=("diffusers",)), monkeypatch)
    assert again.rows == whole.rows


def test_table_has_every_figure_and_command_when_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = ran_parts(RealSizeOptions(tmp_path), monkeypatch)
    out = io.StringIO()
    print_real_size(Console(file=out, width=180), result)
    for text in (out.getvalue(), markdown(result)):
        for cell in (
            "write",
            "12",
            "21",
            "2.50",
            "1.00",
            "1.2",
            "fp32: 81.2 dB, int8: identical",
            "python -m x",
        ):
            assert cell in text
    report = json.loads(json.dumps(real_size_json(result, {"cpu": "a"}), allow_nan=False))
    assert report["parts"]["checkpoint"][0]["disk_bytes"] == 10**9
    assert report["parts"]["diffusers"][0]["found"] == {"fp32_psnr_db": 81.23, "int8_psnr_db": None}


def test_run_fails_when_frames_are_too_far_from_diffusers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far: Mapping[str, object] = {"diffusers": lambda _: iter([row("compare", "x", fp32_psnr_db=39.9)])}
    monkeypatch.setattr(real_size, "PARTS", far)
    with pytest.raises(Unrecoverable, match=r"40 dB or closer to diffusers', got 39\.9 dB"):
        real_size.run(RealSizeOptions(tmp_path), lambda _: None)
    # What was measured is kept all the same.
    assert (tmp_path / "rows.json").exists()


def test_checkpoint_is_not_written_again_when_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    result = real_size.run(RealSizeOptions(tmp_path, parts=("checkpoint",)), lambda _: None)
    assert result.rows == {"checkpoint": []}
    assert np.array_equal(list(tmp_path.glob("logs/*")), [])
