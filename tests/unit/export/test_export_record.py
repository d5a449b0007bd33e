"""Records of finished graphs: written, read again, moved, removed, and read from manifests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slipway_export.repository.export_record import (
    STEPS,
    Record,
    keep_finished,
    left_out_of,
    placed_record,
    records,
)
from slipway_export.repository.publish import write_manifest
from slipway_export.sizing.budget import LeftOut
from slipway_export.spec import Tolerance
from slipway_export.verification.comparison import ParityRow

BOUND = Tolerance(max_abs=1.0, relative_l2=1.0, cosine=0.0)


def row(graph: str, point: str = "min") -> ParityRow:
    return ParityRow(graph, "y", point, (2, 2), 0.0, 0.0, 1.0, BOUND, "here")


def record_of(*files: str, name: str = "family_net/model", **values: object) -> Record:
    return Record(
        name, "made by", {"weights": "read"}, dict.fromkeys(files, "digest"), (row("net"),), **values
    )  # type: ignore[arg-type]


def written(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(file)


def test_record_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    first = record_of("family_net/1/model.onnx", left_out=(LeftOut("net", "max", {"batch": 3}, 60.0),))
    second = record_of(name="family_net/model+steps")
    for record in (first, second):
        record.write(tmp_path)
    assert records(tmp_path) == [second, first]
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "family_net.model+steps.json",
        "family_net.model.json",
    ]
    assert first.model == "family_net"


def test_record_is_removed_with_its_files_when_no_other_names_them(tmp_path: Path) -> None:
    first = record_of("net/1/first.onnx", "net/1/shared", "net/1/of_mine")
    other = record_of("net/1/other.onnx", "net/1/shared", name="family_net/other")
    mine = record_of("net/1/of_mine", name="family_net/mine")
    for record in (first, other):
        record.write(tmp_path)
    # A file may be gone before its record: an earlier removal was interrupted.
    written(tmp_path, "net/1/shared", "net/1/of_mine", "net/1/other.onnx")
    first.remove(tmp_path, [mine])
    assert records(tmp_path) == [other]
    assert sorted(path.name for path in (tmp_path / "net/1").iterdir()) == ["of_mine", "other.onnx", "shared"]
    first.remove(tmp_path)
    assert sorted(path.name for path in (tmp_path / "net/1").iterdir()) == ["other.onnx", "shared"]


def test_record_moves_with_its_files_when_some_went_with_another(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    both = (
        record_of("net/1/deep/first.onnx", "net/1/shared"),
        record_of("net/1/shared", name="family_net/next"),
    )
    written(source, "net/1/deep/first.onnx", "net/1/shared")
    for record in both:
        record.write(source)
    for record in both:
        record.move(source, target)
    assert records(source) == []
    assert {record.name for record in records(target)} == {"family_net/model", "family_net/next"}
    for file in ("net/1/deep/first.onnx", "net/1/shared"):
        assert (target / file).read_text() == file
        assert not (source / file).exists()


def test_folder_keeps_records_and_their_files_only_when_it_is_cleared(tmp_path: Path) -> None:
    record = record_of("net/1/model.onnx")
    record.write(tmp_path)
    written(
        tmp_path, "net/1/model.onnx", "net/1/unfinished", "other/deep/deeper/file", "made/x.part", ".lock"
    )
    (tmp_path / "empty/er").mkdir(parents=True)
    (tmp_path / "net/link").symlink_to(tmp_path / "empty")
    assert keep_finished(tmp_path) is True
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == [".lock", "made", "made/family_net.model.json", "net", "net/1", "net/1/model.onnx"]


def test_folder_without_records_keeps_its_lock_when_it_is_cleared(tmp_path: Path) -> None:
    written(tmp_path, ".lock", "net/1/unfinished")
    assert keep_finished(tmp_path) is False
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def manifest_of(folder: Path) -> Path:
    at_max, steps = LeftOut("net", "max", {"batch": 3}, 60.0), LeftOut("net", "steps", {"batch": 3}, 70.0)
    rows = [row("net"), row("net", "opt"), row("net", "step 1 of 2"), row("other")]
    of_graph, of_steps = record_of("family_net/1/model.onnx"), record_of(name=f"family_net/model{STEPS}")
    of_steps = replace(of_steps, rows=(rows[2],))
    facts = {
        "parity": [each.__dict__ | {"bound": BOUND.__dict__} for each in rows],
        "not_verified": [left.__dict__ for left in (at_max, steps)],
        "made": {each.name: each.facts() for each in (of_graph, of_steps)},
    }
    written(folder, "1/model.onnx")
    write_manifest(folder, facts, digest=lambda _: "digest")
    return folder / "manifest.json"


def test_record_of_what_is_placed_has_its_own_rows_and_what_was_left_out(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "family_net")
    graph = placed_record(manifest, "family_net/model", "net", "family_net")
    assert graph is not None
    # Verified at opt later: its row is the graph's too.
    assert [(each.graph, each.point) for each in graph.rows] == [("net", "min"), ("net", "opt")]
    assert [left.point for left in graph.left_out] == ["max"]
    assert graph == replace(record_of("family_net/1/model.onnx"), rows=graph.rows, left_out=graph.left_out)
    steps = placed_record(manifest, f"family_net/model{STEPS}", "net", "family_net")
    assert steps is not None
    assert [each.point for each in steps.rows] == ["step 1 of 2"]
    assert [left.point for left in steps.left_out] == ["steps"]
    assert steps.files == {}
    alone = placed_record(manifest, "family_net/model", "net")
    assert alone is None or alone.files == {"1/model.onnx": "digest"}
    assert placed_record(manifest, "family_net/other", "net", "family_net") is None
    assert placed_record(tmp_path / "absent.json", "family_net/model", "net") is None


def test_facts_of_a_record_have_paths_within_its_model_and_each_point_once() -> None:
    record = replace(
        record_of("family_net/1/model.onnx", "family_net/1/model.onnx.data"),
        rows=(row("net", "opt"), row("net"), row("net", "opt")),
    )
    assert record.facts() == {
        "identity": "made by",
        "read": {"weights": "read"},
        "files": ["1/model.onnx", "1/model.onnx.data"],
        "points": ["min", "opt"],
    }


def test_left_out_points_are_those_of_the_graph_or_of_its_steps() -> None:
    given = [LeftOut(graph, point, {}, 1.0) for graph in ("net", "other") for point in ("max", "steps")]
    assert left_out_of(given, "net", steps=False) == (given[0],)
    assert left_out_of(given, "other", steps=True) == (given[3],)
