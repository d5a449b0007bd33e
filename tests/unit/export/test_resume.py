"""What need not be made again: by files, descriptions, options; with graphs that are one line of text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
import pytest
from small_exports import BOUND, Exports, component, row, save_with_weights

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.provenance import Digests
from slipway_export.repository.identity import identity
from slipway_export.repository.publish import placing, write_manifest
from slipway_export.repository.resume import graph_files
from slipway_export.repository.staging import staging
from slipway_export.sizing.budget import LeftOut
from slipway_export.spec import Component, Loading, Precision, Stepped
from slipway_export.verification.comparison import ParityRow


@pytest.fixture
def exports(tmp_path: Path) -> Exports:
    return Exports(tmp_path)


@pytest.fixture
def both(exports: Exports) -> list[Component]:
    return [component(exports.checkpoint), component(exports.checkpoint, "other")]


def test_export_takes_what_is_placed_when_nothing_changed(exports: Exports, both: list[Component]) -> None:
    assert exports.run(both, opset=23) == ["net", "other"]
    before = (exports.repository / "family_net/manifest.json").read_text()
    assert exports.run(both, opset=23) == []
    assert exports.lines == [
        "[1/2] net: unchanged, reused from the repository",
        "[2/2] other: unchanged, reused from the repository",
    ]
    assert (exports.repository / "family_net/manifest.json").read_text() == before
    assert (exports.repository / "family_net/1/model.onnx").read_text() == "net"
    assert exports.left() == []


def test_export_takes_what_is_placed_when_the_checkpoint_moved(exports: Exports) -> None:
    exports.run([component(exports.checkpoint)])
    exports.checkpoint = Checkpoint(exports.folder.rename(exports.folder.with_name("moved")), "there")
    assert exports.run([component(exports.checkpoint)]) == []


def _byte(exports: Exports) -> None:
    (exports.folder / "other/weights").write_text("Weights")


def _edited_graph(exports: Exports) -> None:
    (exports.repository / "family_other/1/model.onnx").write_text("edited")


def _no_manifest(exports: Exports) -> None:
    (exports.repository / "family_other/manifest.json").unlink()


def _no_record(exports: Exports) -> None:
    path = exports.repository / "family_other/manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "made": {}}))


def _failed_row(exports: Exports) -> None:
    path = exports.repository / "family_other/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["parity"][0]["max_abs"] = 2.0
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("change", [_byte, _edited_graph, _no_manifest, _no_record, _failed_row])
def test_export_makes_exactly_the_graph_anew_when_it_is_not_the_same(
    exports: Exports, both: list[Component], change: Callable[[Exports], None]
) -> None:
    exports.run(both)
    change(exports)
    assert exports.run(both) == ["other"]


def test_export_makes_all_anew_when_what_the_plan_read_changed(
    exports: Exports, both: list[Component]
) -> None:
    exports.run(both)
    (exports.folder / "net/config.json").write_text("{ }")
    assert exports.run(both) == ["net", "other"]


def test_export_makes_all_anew_when_asked(exports: Exports, both: list[Component]) -> None:
    exports.run(both)
    assert exports.run(both, fresh=True) == ["net", "other"]


def test_export_makes_all_anew_when_an_option_changed(exports: Exports, both: list[Component]) -> None:
    exports.run(both, opset=23)
    assert exports.run(both, opset=22) == ["net", "other"]


def test_export_takes_what_another_precision_gives_too(exports: Exports, both: list[Component]) -> None:
    halves = {Precision.FP32: BOUND, Precision.FP16: BOUND}
    both[1] = replace(both[1], tolerance=halves)
    exports.run(both, precision="fp32")
    assert exports.run(both, precision="fp16") == ["other"]


def test_export_makes_all_anew_when_a_version_changed(
    exports: Exports, both: list[Component], monkeypatch: pytest.MonkeyPatch
) -> None:
    exports.run(both)
    monkeypatch.setattr("slipway_export.repository.identity.library_versions", lambda: {"torch": "3.0"})
    assert exports.run(both) == ["net", "other"]


def sharing(exports: Exports) -> list[str]:
    """Export two graphs with their weights in the file of the first; return the labels of what was made."""
    graphs = [component(exports.checkpoint, "net", graph) for graph in ("first", "next")]
    made = []
    with staging(exports.repository, ["family_net"]) as staged:
        finished = exports.finished(graphs, staged)
        finished.find(graphs, [])
        folder = staged / "family_net" / "1"
        for each in graphs:

            def make(each: Component = each) -> list[ParityRow]:
                made.append(each.label)
                each.load(Precision.FP32, Loading.READ)
                folder.mkdir(parents=True, exist_ok=True)
                if each.graph == "first":
                    (folder / "first.onnx.data").unlink(missing_ok=True)
                    save_with_weights(folder / "first.onnx", "first.onnx.data")
                else:
                    # It refers to weights that are there.
                    assert (folder / "first.onnx.data").exists()
                    save_with_weights(folder / "other.onnx", "unused.data")
                    graph = onnx.load(folder / "other.onnx", load_external_data=False)
                    graph.graph.initializer[0].external_data[0].value = "first.onnx.data"
                    onnx.save(graph, folder / "next.onnx")
                    (folder / "other.onnx").unlink()
                    (folder / "unused.data").unlink()
                return [row(each.label)]

            finished.graph(each, folder / f"{each.graph}.onnx", make)
        parity = [row(each.label).__dict__ | {"bound": BOUND.__dict__} for each in graphs]
        facts = {"parity": parity, "not_verified": [], "made": finished.facts(graphs)}
        write_manifest(staged / "family_net", facts)
        with placing(staged, exports.repository, ["family_net"]):
            pass
    files = sorted(path.name for path in (exports.repository / "family_net/1").iterdir())
    assert files == ["first.onnx", "first.onnx.data", "next.onnx"]
    return made


def test_graphs_that_share_weights_are_made_with_the_file_that_has_them(exports: Exports) -> None:
    both = ["net/first", "net/next"]
    assert sharing(exports) == both
    assert sharing(exports) == []
    folder = exports.repository / "family_net/1"
    (folder / "next.onnx").write_bytes(b"edited")
    assert sharing(exports) == ["net/next"]
    (folder / "first.onnx").write_bytes(b"edited")
    assert sharing(exports) == both
    (folder / "first.onnx.data").write_bytes(b"edited")
    assert sharing(exports) == both


def stepped(net: Component) -> Stepped:
    return Stepped(net, {}, {"y": None}, steps=2, reference=lambda tensors: tensors)


def test_steps_are_taken_with_their_graph_and_verified_when_it_is_another(exports: Exports) -> None:
    net = component(exports.checkpoint)
    steps, not_at_max = stepped(net), LeftOut("net", "steps", {"batch": 3}, 60.0)
    runs = []

    def verify() -> list[ParityRow]:
        runs.append("steps")
        return [row("net", "step 1 of 2")]

    def export(weights: str, *, fresh: bool = False) -> None:
        (exports.folder / "net/weights").write_text(weights)
        with staging(exports.repository, ["family_net"]) as staged:
            finished = exports.finished([net], staged, fresh=fresh)
            finished.find([net], [steps])
            path = staged / "family_net/1/model.onnx"

            def make() -> list[ParityRow]:
                path.parent.mkdir(parents=True)
                path.write_text(weights)
                net.load(Precision.FP32, Loading.READ)
                return [row("net")]

            rows = finished.graph(net, path, make) + finished.steps(steps, verify, [not_at_max])
            assert finished.left_out == (not_at_max,)
            assert [found.point for found in rows] == ["min", "step 1 of 2"]
            facts = {
                "parity": [found.__dict__ | {"bound": BOUND.__dict__} for found in rows],
                "not_verified": [left.__dict__ for left in finished.left_out],
                "made": finished.facts([net]),
            }
            write_manifest(staged / "family_net", facts)
            with placing(staged, exports.repository, ["family_net"]):
                pass

    export("a")
    export("a")
    assert runs == ["steps"]
    export("b")
    assert runs == ["steps", "steps"]
    export("b", fresh=True)
    assert runs == ["steps", "steps", "steps"]


def test_identity_is_another_when_a_function_holds_something_else(exports: Exports) -> None:
    net = component(exports.checkpoint)
    hashes = {
        identity(described, {})
        for described in (
            net,
            replace(net, keep_float=("*.out",)),
            replace(net, load=partial(net.load, Precision.FP16)),
            component(exports.checkpoint, size=3),
        )
    }
    assert len(hashes) == 4
    again = component(Checkpoint(exports.folder, "from elsewhere"))
    assert identity(again, {}) == identity(net, {})


def test_reads_are_noted_by_name_and_what_is_not_there_too(exports: Exports, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text("{}")
    checkpoint = exports.checkpoint
    with checkpoint.recording() as notes:
        assert not checkpoint.has("net/index.json")
        assert checkpoint.has("other")
        checkpoint.config("net/config.json")
        checkpoint.beside(tmp_path / "base", "base").config("config.json")
    digests = notes.digests(Digests())
    base = str(tmp_path / "base/config.json")
    assert digests.keys() == {"net/index.json", "other", "net/config.json", base}
    assert (digests["net/index.json"], digests["other"]) == ("missing", "there")
    assert checkpoint.matches(digests, Digests())
    (exports.folder / "net/index.json").write_text("")
    assert not checkpoint.matches(digests, Digests())
    with checkpoint.recording() as notes:
        assert checkpoint.path == exports.folder
    whole = notes.digests(Digests())
    (exports.folder / "added").write_text("")
    assert not checkpoint.matches(whole, Digests())


def test_files_of_a_graph_are_those_that_its_weights_lie_in(tmp_path: Path) -> None:
    path = tmp_path / "first.onnx"
    save_with_weights(path, "shared.data")
    (tmp_path / "another.data").write_text("")
    assert graph_files(path) == [path, tmp_path / "shared.data"]
