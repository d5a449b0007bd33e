"""A graph that one instance of a model holds and the others reach."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway_serving.runtime.backends.onnxruntime.execution import Arrays
from slipway_serving.runtime.backends.onnxruntime.sharing import (
    SHARED_FROM_BYTES,
    LoadedGraph,
    SharedGraph,
    is_worth_sharing,
    shared_path,
)
from slipway_serving.runtime.backends.onnxruntime.signature import GraphTensor, Signature

SIGNATURE = Signature({"x": GraphTensor("x", "tensor(float)", (-1,))}, {}, {})
X = np.arange(3, dtype=np.float32)


class InvalidArgument(Exception):
    """Named as ONNX Runtime's own."""


def doubles(wanted: Sequence[str], inputs: Arrays) -> list[Any]:
    if inputs["x"].size == 0:
        raise InvalidArgument("x must not be empty")
    return [2 * inputs["x"] for _ in wanted]


class Loads:
    """Counts loads; may be told to fail."""

    def __init__(self) -> None:
        self.count, self.fail, self.run = 0, False, doubles

    def __call__(self) -> LoadedGraph:
        self.count += 1
        if self.fail:
            raise ValueError("cannot be loaded")
        return LoadedGraph(SIGNATURE, self.answer)

    def answer(self, wanted: Sequence[str], inputs: Arrays) -> list[Any]:
        return self.run(wanted, inputs)


@pytest.fixture
def loads() -> Loads:
    return Loads()


@pytest.fixture
def join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: Loads
) -> Iterator[Callable[[], SharedGraph]]:
    """Make instances that meet at one place."""
    monkeypatch.chdir(tmp_path)
    made: list[SharedGraph] = []

    def join() -> SharedGraph:
        made.append(SharedGraph(tmp_path / "graph", loads))
        return made[-1]

    yield join
    for graph in made:
        graph.close()


def test_graph_is_loaded_once_when_instances_share_it(join: Callable[[], SharedGraph], loads: Loads) -> None:
    graphs = [join() for _ in range(3)]
    assert loads.count == 1
    for graph in graphs:
        assert graph.signature == SIGNATURE
        np.testing.assert_array_equal(graph.run(["y"], {"x": X})[0], 2 * X)
    assert loads.count == 1


def test_instances_run_side_by_side_when_the_graph_lets_them(
    join: Callable[[], SharedGraph], loads: Loads
) -> None:
    graphs = [join() for _ in range(3)]
    together = threading.Barrier(3, timeout=60)

    def meets(wanted: Sequence[str], inputs: Arrays) -> list[Any]:
        together.wait()
        return doubles(wanted, inputs)

    loads.run = meets
    threads = [threading.Thread(target=graph.run, args=(["y"], {"x": X})) for graph in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not together.broken
    assert not any(thread.is_alive() for thread in threads)


def test_error_has_its_name_and_text_when_it_comes_from_another_instance(
    join: Callable[[], SharedGraph],
) -> None:
    join()
    with pytest.raises(RuntimeError, match="x must not be empty") as caught:
        join().run(["y"], {"x": X[:0]})
    assert type(caught.value).__name__ == "InvalidArgument"


def test_next_instance_holds_the_graph_when_the_first_has_gone(
    join: Callable[[], SharedGraph], loads: Loads
) -> None:
    first, second, third = (join() for _ in range(3))
    first.close()
    np.testing.assert_array_equal(second.run(["y"], {"x": X})[0], 2 * X)
    assert loads.count == 2
    np.testing.assert_array_equal(third.run(["y"], {"x": X})[0], 2 * X)
    assert loads.count == 2


def test_request_is_not_run_again_when_it_ends_the_instance_that_runs_it(
    join: Callable[[], SharedGraph], loads: Loads
) -> None:
    first, second = join(), join()
    runs = []

    def ends(wanted: Sequence[str], inputs: Arrays) -> list[Any]:
        runs.append(wanted)
        first.close()
        return doubles(wanted, inputs)

    loads.run = ends
    with pytest.raises(ConnectionError, match="ended"):
        second.run(["y"], {"x": X})
    assert len(runs) == 1
    loads.run = doubles
    np.testing.assert_array_equal(second.run(["y"], {"x": X})[0], 2 * X)


def test_load_that_fails_is_raised_and_left_to_the_next(
    join: Callable[[], SharedGraph], loads: Loads
) -> None:
    loads.fail = True
    with pytest.raises(ValueError, match="cannot be loaded"):
        join()
    loads.fail = False
    np.testing.assert_array_equal(join().run(["y"], {"x": X})[0], 2 * X)
    assert loads.count == 2


def test_graph_is_shared_when_it_is_large_and_several_instances_want_it(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(b"graph")
    with (tmp_path / "model.onnx.data").open("wb") as data:
        data.truncate(SHARED_FROM_BYTES)

    def shared(kind: str, device_id: int, *groups: dict[str, Any]) -> bool:
        return is_worth_sharing({"instance_group": list(groups)}, kind, device_id, graph)

    cpu = {"kind": "KIND_CPU", "count": 1}
    gpus = {"kind": "KIND_GPU", "count": 2, "gpus": [0, 1]}
    assert shared("CPU", 0, cpu | {"count": 2})
    assert shared("CPU", 0, cpu, cpu)
    assert shared("GPU", 1, cpu, gpus)
    assert not shared("CPU", 0, cpu, gpus)
    assert not shared("GPU", 2, gpus)
    (tmp_path / "model.onnx.data").unlink()
    assert not shared("CPU", 0, cpu | {"count": 2})


def test_instances_meet_elsewhere_when_graph_config_or_device_is_another(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(b"graph")
    places = [
        shared_path(tmp_path, {"name": "m"}, "CPU", 0, graph),
        shared_path(tmp_path, {"name": "m", "parameters": {}}, "CPU", 0, graph),
        shared_path(tmp_path, {"name": "m"}, "GPU", 0, graph),
        shared_path(tmp_path, {"name": "m"}, "GPU", 1, graph),
    ]
    assert shared_path(tmp_path, {"name": "m"}, "CPU", 0, graph) == places[0]
    (tmp_path / "other").write_bytes(b"graph of the same size"[:5])
    (tmp_path / "other").replace(graph)
    places.append(shared_path(tmp_path, {"name": "m"}, "CPU", 0, graph))
    assert len(set(places)) == len(places)
