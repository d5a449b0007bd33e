"""Placing models: whole or not at all, and never over what is not ours."""

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from slipway_export.repository.publish import (
    check_replaceable,
    find_modification,
    hashes,
    library_versions,
    link_or_copy,
    placing,
    remove,
    write_manifest,
)
from slipway_export.repository.staging import staging
from slipway_serving.protocol.errors import InvalidRequest, NotReady


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
    with pytest.raises(InvalidRequest, match="net must be unchanged since an export placed it"):
        check_replaceable(tmp_path, ["net"])


def test_placed_puts_old_models_back_when_one_cannot_be_placed(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    written_model(repository, "first", "old")
    with staging(repository) as staged:
        written_model(staged, "first", "new")  # "second" was never staged: its rename fails.
        with (
            pytest.raises(InvalidRequest, match="could not be moved into place"),
            placing(staged, repository, ["first", "second"]),
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
        with placing(staged, repository, ["net"]):
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
            placing(staged, repository, ["net", "added"]),
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

    monkeypatch.setattr("slipway_export.repository.staging.fcntl.flock", no_locks)
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


def test_manifest_has_the_facts_the_versions_and_a_hash_of_each_file(tmp_path: Path) -> None:
    model = tmp_path / "net"
    (model / "1/__pycache__").mkdir(parents=True)
    (model / "1/__pycache__/model.pyc").write_text("")
    (model / "1/model.onnx").write_text("a")
    (model / "config.pbtxt").write_text("b")
    write_manifest(model, {"family": "wan_t2v"})
    text = (model / "manifest.json").read_text()
    manifest = json.loads(text)
    assert text.endswith("}\n") and '\n  "format": 1' in text
    files = {
        name: hashlib.sha256(content).hexdigest()
        for name, content in {"1/model.onnx": b"a", "config.pbtxt": b"b"}.items()
    }
    assert manifest == {
        "format": 1,
        "written_by": "slipway",
        "model": "net",
        "family": "wan_t2v",
        "versions": library_versions(),
        "files": files,
    }
    assert list(hashes(model)) == ["1/model.onnx", "config.pbtxt"]
    assert find_modification(model) is None
    given = hashes(model, lambda path: path.name)
    assert given == {"1/model.onnx": "model.onnx", "config.pbtxt": "config.pbtxt"}
    with pytest.raises(ValueError, match="JSON"):
        write_manifest(model, {"seconds": float("inf")})


def test_versions_are_none_for_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    found = library_versions()
    # The metadata of PyPI's wheel leaves out the local version, as in 2.13.0+cu130.
    assert str(found["torch"]).partition("+")[0] == torch.__version__.partition("+")[0]
    assert {"slipway-triton", "onnx", "onnxscript", "onnxruntime", "diffusers", "transformers"} < found.keys()
    monkeypatch.setattr("slipway_export.repository.publish._VERSIONED", ("slipway-nothing-of-that-name",))
    assert library_versions() == {"slipway-nothing-of-that-name": None}


def test_foreign_model_is_told_by_what_is_foreign_about_it(tmp_path: Path) -> None:
    model = written_model(tmp_path, "net")
    (model / "1/added").write_text("")
    (model / "1/model.onnx").unlink()
    assert find_modification(model) == "files changed since the export: 1/added, 1/model.onnx"
    (model / "manifest.json").write_text(json.dumps({"written_by": "them", "files": {}}))
    assert find_modification(model) == "manifest.json written by 'them'"
    (model / "manifest.json").write_text("{")
    assert (find_modification(model) or "").startswith("an unreadable manifest.json (")
    (model / "manifest.json").unlink()
    assert find_modification(model) == "no manifest.json"
    written_model(tmp_path, "good")
    written_model(tmp_path, "other").joinpath("config.pbtxt").write_text("mine")
    with pytest.raises(InvalidRequest) as failure:
        check_replaceable(tmp_path, ["net", "good", "other", "absent"])
    assert str(failure.value) == (
        f"repository {tmp_path}: model net must be unchanged since an export placed it to be replaced, got no"
        " manifest.json | model other must be unchanged since an export placed it to be replaced,"
        " got files changed"
        " since the export: config.pbtxt; try --force"
    )


def test_file_is_in_two_places_once_when_it_can_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "deep/er/target"
    source.write_text("one")
    (tmp_path / "link").symlink_to(source)
    link_or_copy(tmp_path / "link", target)
    assert target.samefile(source) and not target.is_symlink()
    link_or_copy(source, target)
    assert target.samefile(source)
    other = tmp_path / "other"
    other.write_text("two")
    link_or_copy(other, target)
    assert (target.read_text(), source.read_text()) == ("two", "one")

    def no_links(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr("slipway_export.repository.publish.os.link", no_links)
    link_or_copy(source, target)
    assert target.read_text() == "one" and not target.samefile(source)


def test_model_is_removed_whole(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    written_model(repository, "net")
    written_model(repository, "stays")
    remove(repository, "net")
    assert [path.name for path in repository.iterdir()] == ["stays"]
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]


def test_staging_makes_the_folders_around_a_repository_that_is_new(tmp_path: Path) -> None:
    with staging(tmp_path / "new/deep/repository") as staged:
        assert staged.parent == tmp_path / "new/deep"
        assert staged.name.startswith(f".repository.slipway-staging-{os.getpid()}-")
        assert (staged / ".lock").exists()
    assert [path.name for path in (tmp_path / "new/deep").iterdir()] == ["repository"]


def test_staging_leaves_nothing_when_its_block_failed_before_a_graph_was_made(tmp_path: Path) -> None:
    with pytest.raises(KeyError), staging(tmp_path / "repository") as staged:
        (staged / "net/1").mkdir(parents=True)
        (staged / "net/1/model.onnx").write_text("unfinished")
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]


def test_staging_leaves_folders_of_other_repositories_alone(tmp_path: Path) -> None:
    number = 2**22 + 1
    names = [f".other.slipway-staging-{number}-x", f".repository[1].slipway-staging-{number}-x"]
    for name in names:
        (tmp_path / name).mkdir()
    with staging(tmp_path / "repository"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"repository", *names}
    with staging(tmp_path / "repository[1]"):
        pass
    assert not (tmp_path / names[1]).exists()
