"""What an export leaves that was interrupted, failed or refused, and what the next one takes of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from small_exports import Exports, component, row

from slipway_export.repository.export_record import keep_finished, records
from slipway_export.repository.publish import placing
from slipway_export.repository.staging import staging
from slipway_export.spec import Component


@pytest.fixture
def exports(tmp_path: Path) -> Exports:
    return Exports(tmp_path)


@pytest.fixture
def both(exports: Exports) -> list[Component]:
    return [component(exports.checkpoint), component(exports.checkpoint, "other")]


def test_interrupted_export_goes_on_where_it_was(exports: Exports, both: list[Component]) -> None:
    with pytest.raises(KeyboardInterrupt):
        exports.run(both, fails_at="other")
    assert list(exports.repository.iterdir()) == []
    assert exports.run(both) == ["other"]
    assert exports.lines == ["[1/2] net: unchanged, reused from an interrupted export"]
    assert exports.left() == []


def test_what_is_left_is_one_of_each_graph_when_exports_keep_failing(
    exports: Exports, both: list[Component]
) -> None:
    for opset in (21, 22, 23):
        with pytest.raises(KeyboardInterrupt):
            exports.run(both, fails_at="other", opset=opset)
    (left,) = exports.left()
    assert [path.name for path in left.rglob("*.onnx")] == ["model.onnx"]
    assert exports.run(both, opset=22) == ["net", "other"]
    assert exports.left() == []


def test_what_is_left_stays_when_other_models_are_exported(exports: Exports, both: list[Component]) -> None:
    with pytest.raises(KeyboardInterrupt):
        exports.run(both, fails_at="other")
    exports.run(both[1:])
    assert exports.run(both) == []


def test_what_is_left_is_removed_when_all_is_made_anew(exports: Exports, both: list[Component]) -> None:
    with pytest.raises(KeyboardInterrupt):
        exports.run(both, fails_at="other")
    assert exports.run(both, fresh=True) == ["net", "other"]
    assert exports.left() == []


def test_graph_outside_its_bounds_is_not_taken_for_verified(exports: Exports, both: list[Component]) -> None:
    with pytest.raises(RuntimeError):
        exports.run(both, error=2.0)
    assert exports.left() == []
    assert exports.run(both) == ["net", "other"]


def test_exports_at_once_do_not_take_from_each_other(exports: Exports, both: list[Component]) -> None:
    with staging(exports.repository, ["family_net"]) as one:
        finished = exports.finished(both, one)
        path = one / "family_net/1/model.onnx"
        path.parent.mkdir(parents=True)
        path.write_text("net")
        finished.graph(both[0], path, lambda: [row("net")])
        assert exports.run(both) == ["net", "other"]
        assert path.read_text() == "net"
        assert [record.name for record in records(one)] == ["family_net/model"]


def test_graph_that_a_server_refused_is_left_for_the_next_export(exports: Exports) -> None:
    net = component(exports.checkpoint)
    with pytest.raises(RuntimeError), staging(exports.repository, ["family_net"]) as staged:
        finished = exports.finished([net], staged)
        path = staged / "family_net/1/model.onnx"
        path.parent.mkdir(parents=True)
        path.write_text("net")
        finished.graph(net, path, lambda: [row("net")])
        with placing(staged, exports.repository, ["family_net"]):
            raise RuntimeError
    assert list(exports.repository.iterdir()) == []
    assert exports.run([net]) == []


def test_record_that_cannot_be_read_is_removed(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/net.json").write_text("{}")
    (tmp_path / "model.onnx.widened.onnx").write_text("")
    assert records(tmp_path) == []
    assert not keep_finished(tmp_path)


def test_graph_is_made_anew_when_the_newest_of_two_that_were_left_is_of_other_weights(
    exports: Exports, both: list[Component]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        exports.run(both, fails_at="other")
    (left,) = exports.left()
    copy = shutil.copytree(left, left.with_name(f"{left.name}copy"))
    os.utime(left, (1000, 1000))
    os.utime(copy, (2000, 2000))
    for path in copy.rglob("*.onnx"):
        path.write_text("edited")
    assert exports.run(both) == ["net", "other"]
    assert exports.left() == []
