"""`slipway bench gateway` on a real Triton and a real gateway, very small; nothing here asserts a time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from wakeword_fixtures import export_all

from slipway_cli import root

pytestmark = pytest.mark.long

SHORT = (
    "--size 32x32 --frames 5 --steps 4 --pairs 2 --jobs 20 --watchers 4 --sockets 2 --seconds 2"
    " --gets-per-s 10"
)


def test_videos_and_a_queue_with_a_crowd_are_measured_on_a_repository_of_the_user(
    repository: Path, shared: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    shutil.copytree(repository, models)
    shutil.copytree(export_all(shared).repository, models, dirs_exist_ok=True)
    line = ["bench", "gateway", "--repository", str(models), *SHORT.split()]
    assert root.run([*line, "--output", str(tmp_path), "--quiet"]) == 0
    found = json.loads((tmp_path / "gateway.json").read_text())
    assert len(found["pairs"]["finished_ratio"]["values"]) == 2
    assert found["pairs"]["progress_ratio"]["min"] > 0
    for look in ("quiet", "crowded"):
        assert found["queue"][look]["get"]["count"] == 20
        assert found["queue"][look]["memory_bytes"] > 50 << 20
    crowd = found["queue"]["crowd"]
    assert (crowd["watchers"], crowd["sockets"]) == (4, 2)
    assert crowd["messages"] > 0
    assert (tmp_path / "gateway.png").read_bytes().startswith(b"\x89PNG\r\n")
