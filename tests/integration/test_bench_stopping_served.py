"""`slipway bench stopping` on a real Triton at a very small size. Nothing here asserts a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipway_cli import root

SHORT = (
    "--size 32x32 --frames 5 --steps 6 --stop-after 2 --videos 2 --continued 1 --checkpoint-every 2 --runs 1"
    " --stops 3"
)


@pytest.mark.long
def test_drafts_checkpoints_and_stops_are_measured_on_a_repository_of_the_user(
    repository: Path, tmp_path: Path
) -> None:
    line = ["bench", "stopping", "--repository", str(repository), *SHORT.split()]
    assert root.run([*line, "--output", str(tmp_path), "--quiet"]) == 0
    found = json.loads((tmp_path / "stopping.json").read_text())
    assert found["expected_ratio"] == (2 * 2 + 4) / (2 * 6)
    assert found["drafts"]["ratio"] > 0
    assert len(found["drafts"]["continued_ratio"]["values"]) == 1
    # The state holds the latents of 2 x 16 x 4 x 4 values in float32.
    assert found["checkpoints"]["state_bytes"] > 2 * 16 * 4 * 4 * 4
    assert len(found["stops"]["stop_s"]["values"]) == 3
    pipeline, server = (found["stops"][name]["read_bytes"] for name in ("pipeline", "server"))
    assert all(0 < part < whole for part, whole in zip(pipeline, server, strict=True))
    assert (tmp_path / "stopping.png").read_bytes().startswith(b"\x89PNG\r\n")
