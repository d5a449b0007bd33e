"""The end of a real-size run at tiny size: the real server by its command, the call, diffusers beside it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from slipway_cli import root

pytestmark = pytest.mark.long


def test_served_frames_are_diffusers_when_prompt_embeddings_are_the_served_ones(
    repository: Path, checkpoint: Path, tmp_path: Path
) -> None:
    work, output = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    (work / "checkpoint").symlink_to(checkpoint)
    (work / "models").symlink_to(repository)
    flags = ["--size", "48x32", "--frames", "5", "--steps", "2", "--quiet"]
    parts = ["--part", "served-fp32", "--part", "diffusers"]
    where = ["--work", str(work), "--output", str(output)]
    assert root.run(["bench", "real-size", *flags, *parts, *where]) == 0
    report = json.loads((output / "real_size.json").read_text())
    start, call = report["parts"]["served-fp32"]
    (compared,) = report["parts"]["diffusers"]
    assert compared["found"]["fp32_psnr_db"] > 45
    assert all(row["ran"]["peak_rss_bytes"] > 10**8 for row in (start, call, compared))
    assert call["ran"]["command"].startswith("slipway generate wan_t2v 'A serene lake at sunset'")
    assert np.load(work / "frames-fp32.npy").shape == (5, 32, 48, 3)
    assert np.load(work / "embeds.npz")["prompt_embeds"].shape == (1, 512, 32)
