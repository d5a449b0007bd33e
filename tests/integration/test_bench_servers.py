"""`slipway bench video` on a checkpoint of the user's, and on a server that runs already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipway_cli import root
from slipway_loadtests.bench.video import DIFFUSERS, IN_PROCESS, TRITON
from slipway_serving.server import Server

SHORT = "--rounds 1 --size 32x32 --frames 5 --steps 2"
WITH_INTERVAL = f"{TRITON}, guidance_stop 0.5"


def bench(output: Path, *more: str) -> dict[str, Any]:
    assert root.run(["bench", "video", *SHORT.split(), "--output", str(output), *more]) == 0
    found: dict[str, Any] = json.loads((output / "video.json").read_text())
    return found


def test_checkpoint_is_exported_served_and_compared_with_diffusers(one_expert: Path, tmp_path: Path) -> None:
    found = bench(tmp_path, "--checkpoint", str(one_expert), "--quiet")
    assert list(found["subjects"])[:3] == [DIFFUSERS, IN_PROCESS, TRITON]
    assert found["settings"]["checkpoint"] == str(one_expert)
    assert list(found["peak_memory_mib"]) == ["5", "21", "41"]
    assert (found["not_run"], found["notes"]) == ({}, [])
    quality = found["subjects"][TRITON]["quality"]
    assert quality["psnr_db"] is None or quality["psnr_db"] > 40


def test_running_server_is_measured_alone_and_what_is_left_out_is_said(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bench(tmp_path, "--url", server.grpc_url)
    assert list(found["subjects"]) == [TRITON, WITH_INTERVAL]
    assert found["subjects"][TRITON]["quality"] is None
    assert (found["step_ratio"], found["peak_memory_mib"]) == (None, {})
    assert all("cache_threshold must" in reason for reason in found["not_run"].values())
    assert len(found["not_run"]) == 2  # The server's export has no first-block cache.
    printed = capsys.readouterr().out
    assert "diffusers was left out: it needs --checkpoint too" in printed
    assert f"{TRITON} ÷ it" in printed
    assert (tmp_path / "video.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_running_server_is_compared_with_diffusers_when_its_checkpoint_is_given(
    server: Server, checkpoint: Path, tmp_path: Path
) -> None:
    found = bench(tmp_path, "--url", server.grpc_url, "--checkpoint", str(checkpoint), "--quiet")
    assert list(found["subjects"]) == [DIFFUSERS, TRITON, WITH_INTERVAL]
    quality = found["subjects"][TRITON]["quality"]
    assert quality["psnr_db"] is None or quality["psnr_db"] > 40
    assert "left out: they need an export" in found["notes"][0]


def test_video_that_a_server_refuses_ends_the_run(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        root.run(["bench", "video", "--url", server.grpc_url, "--size", "1280x720", "-o", str(tmp_path)]) == 2
    )
    assert "height must be" in capsys.readouterr().err
