"""Fixtures shared by all tests: one tiny checkpoint, one export of it, one Triton that serves it."""

from __future__ import annotations

import json
import os
import shutil
import zlib

# Before torch or ONNX Runtime is imported: two cores, and no network. Threads of torch that wait must sleep:
# those of several test processes and servers that spin leave each other no core. 1,200 small operations
# took 6.5 s of processor time on a busy machine with spinning threads, and 0.7 s without.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock
from tiny_exports import checkpoint_once, exported_once

# Fixtures import what they need, so that a test of the client does not load torch.
if TYPE_CHECKING:
    from gate import Gate

    from slipway_export.run import ExportResult
    from slipway_serving.triton.server import Server


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a test run have in common."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _traces(shared: Path) -> None:
    """Share among all processes of a run the graphs that torch traced, which exports take longest for."""
    os.environ["SLIPWAY_TRACES"] = str(shared / "traces")


@pytest.fixture(scope="session")
def checkpoint(shared: Path) -> Path:
    """The tiny Wan checkpoint, as `slipway checkpoint wan_t2v` writes it, made by the first that asks."""
    return checkpoint_once(shared, "wan_t2v")


@pytest.fixture(scope="session")
def one_expert(checkpoint: Path, shared: Path) -> Path:
    """The tiny checkpoint in Wan2.1's layout: without transformer_2."""
    folder = shared / "one_expert"
    with FileLock(shared / "one_expert.lock"):
        if not folder.exists():
            shutil.copytree(checkpoint, folder, ignore=lambda *_: ["transformer_2"])
            index = json.loads((folder / "model_index.json").read_text())
            index |= {"boundary_ratio": None, "transformer_2": [None, None]}
            (folder / "model_index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="session")
def exported(checkpoint: Path, shared: Path) -> tuple[Path, ExportResult]:
    """The tiny checkpoint's model repository, and what the export reported."""
    return exported_once(shared, "wan_t2v", str(checkpoint))


@pytest.fixture(scope="session")
def repository(exported: tuple[Path, ExportResult]) -> Path:
    """The tiny checkpoint's model repository. Read only: copy it to change it."""
    return exported[0]


# A server has ten processes of 270 MB. Those of a file end with it: were they kept for the whole run, four
# files at a time would need more memory than the tests may have.
@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    """A real Triton that serves the tiny repository."""
    from slipway_serving.triton.server import Server, ServerConfig

    with Server(ServerConfig(repository=repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def gated_server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Gate]]:
    """A real Triton whose videos wait for a gate, and the gate; a test leaves it with nothing under way."""
    from gate import gated

    from slipway_serving.triton.server import Server, ServerConfig

    copy, gate = gated(repository, tmp_path_factory.mktemp("gated"))
    with Server(ServerConfig(copy, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running, gate


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take minutes, so that the quick ones fill what is left of each process.

    What takes long, and what trains a checkpoint, is left out unless it is asked for. Files are mixed,
    because those of one family, whose names begin alike, would wait for each other's exports.
    """
    for marker in {"long", "training"} - set(config.option.markexpr.split()):
        items[:] = [item for item in items if not item.get_closest_marker(marker)]
    items.sort(key=lambda item: ("unit" in item.path.parts, zlib.crc32(item.path.name.encode())))


def _graphs_run_inside() -> bool:
    """Return whether the Triton under test (SLIPWAY_TRITON_DIR) has a C++ backend for ONNX graphs."""
    from slipway_serving.triton.install.locate import find_triton
    from slipway_serving.triton.install.setup import TritonSetup

    return TritonSetup.choose(find_triton(), None).native


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where PyTorch sees none, and what the Triton under test does otherwise."""
    if item.get_closest_marker("python_graphs") and _graphs_run_inside():
        pytest.skip("Triton's C++ backend runs the graphs")
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("PyTorch sees no GPU")
