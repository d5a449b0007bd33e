"""What a model that PyTorch serves is placed with, and how its network is loaded from there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.checkpoint.provenance import ReadRecord
from slipway_export.engines.torch_model import network_files, stage_network
from slipway_export.engines.torch_network import NetworkFacts, load
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.repository.publish import link_or_copy
from slipway_export.spec import Component, Engine, Loading, Precision
from slipway_export.trained_models import Library, export_model
from slipway_serving.protocol.errors import InvalidRequest

HEAD = family_named("wakeword_head")
AXES = HEAD.presets["tiny"].axes
FACTS = NetworkFacts(HEAD.name, None, "tiny", "tiny", {a.name: (a.min, a.opt, a.max) for a in AXES})


@pytest.fixture
def head() -> Iterator[tuple[Checkpoint, Component, ReadRecord]]:
    """A tiny wake word, its component, and what was read to describe it."""
    with open_checkpoint(HEAD, "tiny") as checkpoint:
        with checkpoint.recording() as planned:
            (component,) = HEAD.plan(checkpoint, AXES).components
        yield checkpoint, component, planned


def test_network_is_the_same_when_it_is_loaded_from_what_was_placed(
    head: tuple[Checkpoint, Component, ReadRecord], tmp_path: Path
) -> None:
    checkpoint, component, planned = head
    (checkpoint.folder / ".cache").mkdir()
    (checkpoint.folder / ".cache/lock").touch()
    (tmp_path / "1").mkdir()
    stage_network(component, FACTS, checkpoint, planned, tmp_path / "1")
    names = [path.relative_to(tmp_path / "1").as_posix() for path in network_files(tmp_path / "1")]
    assert names[0] == "network.json"
    assert "checkpoint/model.pt" in names
    assert not any("cache" in name for name in names)
    network = load(tmp_path / "1/network.json", "fp32")
    embedding = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    for ours, theirs in zip(
        network.module(embedding), component.load(Precision.FP32, Loading.READ)(embedding), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert network.signature.inputs["embedding"].shape == ("batch", 64)
    assert [*network.signature.outputs] == ["logits", "probability", "threshold"]
    # The last product decides, and keeps its float.
    assert network.products
    assert not any(path.endswith("output") for path in network.products)


def test_component_is_refused_when_its_family_has_none_of_that_name(
    head: tuple[Checkpoint, Component, ReadRecord], tmp_path: Path
) -> None:
    checkpoint, component, planned = head
    stage_network(component, replace(FACTS, component="jarvis"), checkpoint, planned, tmp_path)
    with pytest.raises(InvalidRequest, match=r"network.json: component must be one of tiny, got jarvis"):
        load(tmp_path / "network.json", "fp32")
    (tmp_path / "network.json").unlink()
    with pytest.raises(InvalidRequest, match="must be the JSON file that the export writes"):
        load(tmp_path / "network.json", "fp32")


def test_file_is_refused_when_it_lies_outside_the_checkpoint(
    head: tuple[Checkpoint, Component, ReadRecord], tmp_path: Path
) -> None:
    checkpoint, component, planned = head
    other = checkpoint.beside(tmp_path / "elsewhere", "elsewhere")

    def load_both(precision: Precision, loading: Loading) -> torch.nn.Module:
        other.file("model.pt")
        return component.load(precision, loading)

    abroad = replace(component, load=load_both)
    with pytest.raises(InvalidRequest, match="tiny: files must lie within checkpoint tiny for engine torch"):
        stage_network(abroad, FACTS, checkpoint, planned, tmp_path)


def test_file_is_copied_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").write_text("many")
    (tmp_path / "link").symlink_to(tmp_path / "weights")
    link_or_copy(tmp_path / "link", tmp_path / "model/first")
    assert (tmp_path / "model/first").samefile(tmp_path / "weights")
    assert not (tmp_path / "model/first").is_symlink()

    def refuse(*_: object) -> None:
        raise OSError("another file system")

    monkeypatch.setattr("slipway_export.repository.publish.os.link", refuse)
    link_or_copy(tmp_path / "link", tmp_path / "model/first")  # there already
    link_or_copy(tmp_path / "link", tmp_path / "model/second")
    assert (tmp_path / "model/second").read_text() == "many"
    assert not (tmp_path / "model/second").samefile(tmp_path / "weights")


def test_what_is_read_within_notes_is_in_those_around_them_too(tmp_path: Path) -> None:
    checkpoint, other = Checkpoint(tmp_path, "one"), Checkpoint(tmp_path / "other", "other")
    beside = checkpoint.beside(tmp_path / "beside", "beside")
    with checkpoint.recording() as outer:
        with checkpoint.recording() as inner:
            checkpoint.file("a")
            checkpoint.has("b")
        other.file("c")
        beside.file("d")
    checkpoint.file("e")
    assert (inner.content, inner.looked_for) == ({"a"}, {"b"})
    assert (outer.content, outer.looked_for) == ({"a", str(tmp_path / "beside/d")}, {"b"})


def test_trained_model_is_refused_when_no_graph_would_lie_beside_it(tmp_path: Path) -> None:
    options = ExportOptions("", tmp_path / "models", engine=Engine.TORCH)
    with pytest.raises(InvalidRequest, match="engine must be one that writes a graph, got torch"):
        export_model(HEAD, Library(tmp_path / "trained"), "jarvis", options)
