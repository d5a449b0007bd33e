"""Placing models: whole or not at all, and never over what is not ours."""

import errno
import json
import os
from pathlib import Path

import pytest

from slipway_export.repository import check_replaceable, placed, write_manifest
from slipway_export.staging import staging
from slipway_serving.errors import InvalidRequest, NotReady


def written_model(repository: Path, name: str, content: str = "a") -> Path:
    model = repository / name
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.onnx").write_text(content)
    write_manifest(model, {"family": "wan_t2v"})
    return model


def test_model_of_an_export_is_replaceable(tmp_path: Path) -> None:
    written_model(tmp_path, "net")
    check_replaceable(tmp_path, ["net", "absent"])


def test_foreign_model_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    with pytest.raises(InvalidRequest, match=r"theirs .* no manifest.json.*--force"):
        check_replaceable(tmp_path, ["theirs"])


def test_model_changed_since_the_export_is_refused_with_the_file(tmp_path: Path) -> None:
    model = written_model(tmp_path, "net")
    (model / "1" / "model.onnx").write_text("b")
    (model / "config.pbtxt").write_text("mine")
    with pytest.raises(InvalidRequest, match=r"changed since the export: 1/model.onnx, config.pbtxt"):
        check_replaceable(tmp_path, ["net"])


@pytest.mark.parametrize("manifest", ["{", "[]", json.dumps({"written_by": "them", "files": {}})])
def test_model_with_another_manifest_is_refused(tmp_path: Path, manifest: str) -> None:
    model = written_model(tmp_path, "net")
    (model / "manifest.json").write_text(manifest)
    with pytest.raises(InvalidRequest, match="net must have been written by slipway"):
        check_replaceable(tmp_path, ["net"])


def test_placed_puts_old_models_back_when_one_cannot_be_placed(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    written_model(repository, "first", "old")
    with staging(repository) as staged:
        written_model(staged, "first", "new")  # "second" was never staged: its rename fails.
        with (
            pytest.raises(InvalidRequest, match="could not be placed"),
            placed(staged, repository, ["first", "second"]),
        ):
            pass
    assert (repository / "first" / "1" / "model.onnx").read_text() == "old"
    assert sorted(path.name for path in repository.iterdir()) == ["first"]


def test_placed_replaces_whole_folders(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    old = written_model(repository, "net", "old")
    (old / "stale").write_text("left over")
    with staging(repository) as staged:
        written_model(staged, "net", "new")
        with placed(staged, repository, ["net"]):
            pass
    assert (repository / "net" / "1" / "model.onnx").read_text() == "new"
    assert not (repository / "net" / "stale").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]


def test_placed_puts_all_back_when_a_server_refuses_them(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    written_model(repository, "net", "old")
    with staging(repository) as staged:
        written_model(staged, "net", "new")
        written_model(staged, "added", "new")
        with (
            pytest.raises(NotReady, match="cannot load"),
            placed(staged, repository, ["net", "added"]),
        ):
            assert (repository / "net" / "1" / "model.onnx").read_text() == "new"
            raise NotReady("cannot load")
    assert (repository / "net" / "1" / "model.onnx").read_text() == "old"
    assert [path.name for path in repository.iterdir()] == ["net"]


def test_staging_sweeps_folders_of_killed_exports_only(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    # No process can have a number above the kernel's largest.
    dead = tmp_path / f".repository.slipway-staging-{2**22 + 1}-x"
    alive = tmp_path / f".repository.slipway-staging-{os.getpid()}-x"
    dead.mkdir()
    alive.mkdir()
    with staging(repository) as staged:
        assert not dead.exists()
        assert alive.exists()
        # Triton would take a folder inside for a model.
        assert list(repository.iterdir()) == []
        assert staged.parent == tmp_path


def test_staging_is_refused_when_the_file_system_has_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("slipway_export.staging.fcntl.flock", no_locks)
    with pytest.raises(InvalidRequest, match="No locks available"), staging(tmp_path / "repository"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]


def test_repository_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InvalidRequest, match="repository must be a folder that can be written"),
        staging(tmp_path / "file"),
    ):
        pass
