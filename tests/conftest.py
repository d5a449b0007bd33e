"""Fixtures shared by all tests: one tiny checkpoint, one export of it, one Triton that serves it."""

from __future__ import annotations

import os

# Before torch or ONNX Runtime is imported: two cores, and no network.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Iterator
from pathlib import Path

import pytest
from gate import Gate, gated

from slipway_export.families import family_named
from slipway_export.run import ExportOptions, ExportResult, run_export
from slipway_serving.server import Server, ServerConfig


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Wan checkpoint, as `slipway checkpoint wan_t2v` writes it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    family_named("wan_t2v").presets["tiny"].write(folder, 0)
    return folder


@pytest.fixture(scope="session")
def exported(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportResult]:
    """The tiny checkpoint's model repository, and what the export reported."""
    repository = tmp_path_factory.mktemp("models") / "repository"
    options = ExportOptions(checkpoint=str(checkpoint), repository=repository)
    return repository, run_export(family_named("wan_t2v"), options)


@pytest.fixture(scope="session")
def repository(exported: tuple[Path, ExportResult]) -> Path:
    """The tiny checkpoint's model repository. Read only: copy it to change it."""
    return exported[0]


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[Server]:
    """A real Triton that serves the tiny repository."""
    with Server(ServerConfig(repository=repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture(scope="session")
def gated_server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Gate]]:
    """A real Triton whose videos wait for a gate, and the gate; a test leaves it with nothing under way."""
    copy, gate = gated(repository, tmp_path_factory.mktemp("gated"))
    with Server(ServerConfig(copy, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running, gate
