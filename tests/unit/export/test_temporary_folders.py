"""Temporary folders: removed on leaving, and by the next one when their owner was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slipway_serving.system.temporary_folders import TemporaryFolder

KILLED = """
import os, signal, sys
from pathlib import Path
from slipway_serving.system.temporary_folders import TemporaryFolder
with TemporaryFolder("work-", Path(sys.argv[1])) as folder:
    (folder / "file").write_text("content")
    os.kill(os.getpid(), signal.SIGKILL)
"""
EXPORT_KILLED = """
import os, signal
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
with open_checkpoint(family_named("airimu"), "tiny") as checkpoint:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_folder_is_there_for_its_block_and_gone_after(tmp_path: Path) -> None:
    with TemporaryFolder("work-", tmp_path) as folder:
        assert names(tmp_path) == [folder.name] and folder.name.startswith("work-")
        (folder / "file").write_text("content")
    assert names(tmp_path) == []


def test_folder_is_gone_when_its_block_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), TemporaryFolder("work-", tmp_path):
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_folder_is_removed_by_the_next_when_its_owner_was_killed(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    (left,) = names(tmp_path)
    with TemporaryFolder("other-", tmp_path):
        assert left in names(tmp_path)  # it belongs to another purpose
    with TemporaryFolder("work-", tmp_path) as folder:
        assert names(tmp_path) == [folder.name]


def test_folder_stays_when_its_owner_lives(tmp_path: Path) -> None:
    with TemporaryFolder("work-", tmp_path) as first, TemporaryFolder("work-", tmp_path) as second:
        assert names(tmp_path) == sorted([first.name, second.name])
        program = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "")
        subprocess.run([sys.executable, "-c", program, tmp_path], check=True, timeout=60)
        assert names(tmp_path) == sorted([first.name, second.name])


def test_link_of_that_name_is_neither_followed_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "work-link").symlink_to(tmp_path / "precious")
    with TemporaryFolder("work-", tmp_path):
        assert {"precious", "work-link"} <= set(names(tmp_path))


def test_prefix_is_taken_literally_when_it_has_characters_of_patterns(tmp_path: Path) -> None:
    (tmp_path / "work-a").mkdir()
    with TemporaryFolder("work[-]", tmp_path), TemporaryFolder("work*", tmp_path):
        assert "work-a" in names(tmp_path)


def test_checkpoint_of_a_killed_export_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipway_export.checkpoint.opening import open_checkpoint
    from slipway_export.families import family_named

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    killed = subprocess.run([sys.executable, "-c", EXPORT_KILLED], check=False, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    (left,) = names(tmp_path)
    assert "checkpoint" in left
    with open_checkpoint(family_named("airimu"), "tiny") as checkpoint:
        assert names(tmp_path) == [checkpoint.path.name] != [left]
    assert names(tmp_path) == []
