"""The folder of trained models: names that cannot leave it, and what a model's status says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.trained_models import Library, UnknownModel, export_model, served_model
from slipway_serving.protocol.errors import InvalidRequest

BAD_NAMES = (
    "../x",
    "/etc",
    "a/b",
    "",
    ".",
    "..",
    "jarvis\n",
    "járvis",
    "Jarvis",
    "x" * 65,
    "word_fused",
    "a\\b",
)


def add(
    folder: Path, name: str, kind: str = "custom", weights: bytes = b"weights", **metadata: object
) -> Path:
    """Write a model into a models folder."""
    model = folder / kind / name
    model.mkdir(parents=True)
    (model / "model.pt").write_bytes(weights)
    (model / "metadata.json").write_text(json.dumps({"wake_word": name, "threshold": 0.6, **metadata}))
    return model


@pytest.mark.parametrize("name", BAD_NAMES)
def test_name_that_is_no_id_is_refused_everywhere(tmp_path: Path, name: str) -> None:
    library = Library(tmp_path / "trained")
    for ask in (library.find, library.status, library.create, library.delete_graph):
        with pytest.raises(InvalidRequest, match="word must be 1 to 64 characters a-z"):
            ask(name)
    assert not list(tmp_path.iterdir())


def test_link_out_of_the_models_folder_is_no_model(tmp_path: Path) -> None:
    library = Library(tmp_path / "trained")
    outside = add(tmp_path / "elsewhere", "secret")
    (tmp_path / "trained" / "custom").mkdir(parents=True)
    (tmp_path / "trained" / "custom" / "secret").symlink_to(outside)
    assert library.ids() == []
    with pytest.raises(UnknownModel, match="none yet.*got secret"):
        library.status("secret")
    with pytest.raises(InvalidRequest, match="got a symbolic link"):
        library.create("secret")


def test_ids_are_those_of_both_kinds_and_custom_wins(tmp_path: Path) -> None:
    add(tmp_path, "jarvis", "default", threshold=0.1)
    add(tmp_path, "jarvis", "custom", threshold=0.2)
    add(tmp_path, "alexa", "default")
    (tmp_path / "custom" / "Not An Id").mkdir()
    (tmp_path / "custom" / "empty").mkdir()
    library = Library(tmp_path)
    assert library.ids() == ["alexa", "jarvis"]
    assert (library.status("jarvis").kind, library.status("jarvis").threshold) == ("custom", 0.2)
    assert library.status("alexa").kind == "default"
    with pytest.raises(UnknownModel, match=r"\(alexa, jarvis\), got siri"):
        library.find("siri")


def test_status_follows_export_retraining_failure_and_deletion(tmp_path: Path) -> None:
    library, model = Library(tmp_path / "trained"), add(tmp_path / "trained", "jarvis")
    status = library.status("jarvis")
    assert (status.has_pt, status.has_onnx, status.onnx_size_bytes, status.onnx_error) == (
        True,
        False,
        None,
        None,
    )
    assert not status.onnx_is_current

    version = tmp_path / "1"
    version.mkdir()
    (version / "model.onnx").write_bytes(b"graph")
    (version / "model.onnx.data").write_bytes(b"tensors")
    library.record_export("jarvis", version, {"precision": "int8", "variant": None})
    status = library.status("jarvis")
    assert (status.has_onnx, status.onnx_size_bytes, status.onnx_precision) == (True, 12, "int8")
    assert status.onnx_is_current

    (model / "model.pt").write_bytes(b"trained again")
    assert not library.status("jarvis").onnx_is_current

    library.record_failure("jarvis", "it broke")
    status = library.status("jarvis")
    assert (status.has_pt, status.has_onnx, status.onnx_error) == (True, True, "it broke")

    library.record_export("jarvis", version, {"precision": "fp32", "variant": None})
    assert library.status("jarvis").onnx_error is None
    library.delete_graph("jarvis")
    status = library.status("jarvis")
    assert (status.has_pt, status.has_onnx, status.wake_word) == (True, False, "jarvis")
    assert sorted(path.name for path in model.iterdir()) == ["metadata.json", "model.pt"]
    with pytest.raises(UnknownModel, match="jarvis must have an exported graph to delete"):
        library.delete_graph("jarvis")


@pytest.mark.parametrize("text", ["{", "[]", '{"onnx": 3}'])
def test_metadata_that_is_no_object_is_refused_by_its_file(tmp_path: Path, text: str) -> None:
    model = add(tmp_path, "jarvis")
    (model / "metadata.json").write_text(text)
    with pytest.raises(InvalidRequest, match=r"jarvis/metadata\.json must be"):
        Library(tmp_path).status("jarvis")


def test_model_without_metadata_has_no_threshold_rather_than_a_guess(tmp_path: Path) -> None:
    model = add(tmp_path, "jarvis")
    (model / "metadata.json").unlink()
    assert Library(tmp_path).status("jarvis").threshold is None


def test_export_writes_down_why_it_failed_and_keeps_the_weights(tmp_path: Path) -> None:
    library, model = Library(tmp_path / "trained"), add(tmp_path / "trained", "jarvis", weights=b"no weights")
    family = family_named("wakeword_head")
    options = ExportOptions(checkpoint="", repository=tmp_path / "repository")
    with pytest.raises(InvalidRequest) as caught:
        export_model(family, library, "jarvis", options)
    assert (model / "model.pt").read_bytes() == b"no weights"
    assert library.status("jarvis").onnx_error == str(caught.value)
    assert not library.status("jarvis").has_onnx


def test_export_is_refused_into_the_models_folder_itself(tmp_path: Path) -> None:
    add(tmp_path, "jarvis")
    options = ExportOptions(checkpoint="", repository=tmp_path)
    with pytest.raises(InvalidRequest, match="repository must not be the folder of trained models"):
        export_model(family_named("wakeword_head"), Library(tmp_path), "jarvis", options)


def test_export_of_a_trained_model_is_refused_into_a_file(tmp_path: Path) -> None:
    add(tmp_path, "jarvis")
    options = ExportOptions(checkpoint="", output=tmp_path / "jarvis.onnx")
    with pytest.raises(InvalidRequest, match="repository must be given for a trained model"):
        export_model(family_named("wakeword_head"), Library(tmp_path), "jarvis", options)


def test_served_model_is_named_as_the_export_names_it() -> None:
    family = family_named("wakeword_head")
    assert served_model(family, "jarvis", None) == "wakeword_head_jarvis"
    assert served_model(family, "jarvis", "fused") == "wakeword_head_jarvis_fused"
