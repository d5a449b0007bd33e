"""Authored models as they are staged."""

from __future__ import annotations

from pathlib import Path

from slipway_export.repository.publish import stage_authored
from slipway_export.spec import AuthoredModel


def test_ensemble_has_a_version_folder_when_its_source_has_none(tmp_path: Path) -> None:
    source = tmp_path / "source" / "prompt"
    source.mkdir(parents=True)
    (source / "config.pbtxt").write_text('platform: "ensemble"\n')
    folder = stage_authored(AuthoredModel("prompt", source=source), tmp_path / "staged")
    assert (folder / "1").is_dir()
    assert (folder / "config.pbtxt").is_file()
