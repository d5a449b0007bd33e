"""Exports that are interrupted, repeated, or that a machine has no room for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import three_family
from three_family import FAMILY, PARTS, SHARDED, WIDTH

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.repository.publish import hashes
from slipway_export.run import run_export
from slipway_export.sizing.resource_check import (
    InsufficientResources,
    Requirements,
    check_disk,
    check_memory,
    graph_requirements,
    reporting_full_disk,
)
from slipway_export.spec import Precision
from slipway_serving.protocol.errors import InvalidRequest

pytestmark = pytest.mark.long

MODELS = {f"three_{part}" for part in PARTS}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three") / "checkpoint"
    three_family.write_checkpoint(folder)
    return folder


@pytest.fixture
def three(written: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint that a test may change."""
    return Path(shutil.copytree(written, tmp_path / "checkpoint"))


def export(checkpoint: Path, repository: Path) -> list[str]:
    """Export; return the components that were made, in their order."""
    lines: list[str] = []
    options = ExportOptions(checkpoint=str(checkpoint), repository=repository)
    run_export(FAMILY, options, lines.append)
    made = [line.split("] ")[1].split(":")[0] for line in lines if ": exporting" in line]
    taken = [line.split("] ")[1].split(":")[0] for line in lines if "unchanged, reused from" in line]
    assert sorted(made + taken) == sorted(PARTS)
    return made


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_export_goes_on_when_it_was_killed_in_its_third_component(three: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models" / "repository"
    program = "import three_family; three_family.export_until_killed()"
    killed = subprocess.run(
        [sys.executable, "-c", program, three, repository],
        cwd=Path(three_family.__file__).parent,
        check=False,
        timeout=600,
    )
    assert killed.returncode == -signal.SIGKILL
    assert list(repository.iterdir()) == []

    assert export(three, repository) == ["third"]
    assert {path.name for path in repository.iterdir()} == MODELS
    assert [path.name for path in repository.parent.iterdir()] == ["repository"]

    before = {name: hashes(repository / name) for name in MODELS}
    assert export(three, repository) == []
    assert {name: hashes(repository / name) for name in MODELS} == before

    shard = sorted((three / SHARDED).glob("*.safetensors"))[0]
    change_a_byte(shard)
    assert export(three, repository) == [SHARDED]
    changed = {name for name in MODELS if hashes(repository / name) != before[name]}
    assert changed == {f"three_{SHARDED}"}


def test_graph_of_its_own_is_taken_when_it_is_the_same_and_made_anew_when_asked(
    three: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    options = ExportOptions(str(three), output=tmp_path / "out" / "first.onnx", components=("first",))
    first = run_export(FAMILY, options, lines.append)
    again = run_export(FAMILY, options, lines.append)
    assert again.rows == first.rows
    assert "[1/1] first: unchanged, reused from the repository" in lines
    assert sum(": exporting" in line for line in lines) == 1
    run_export(FAMILY, replace(options, fresh=True), lines.append)
    assert sum(": exporting" in line for line in lines) == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["first.onnx", "first.onnx.json"]


def test_repository_is_as_it_was_when_a_later_shard_is_cut_short(three: Path, tmp_path: Path) -> None:
    shard = sorted((three / SHARDED).glob("*.safetensors"))[-1]
    shard.write_bytes(shard.read_bytes()[:-100])
    lines: list[str] = []
    with pytest.raises(InvalidRequest, match=rf"{shard.name} must be a complete safetensors file"):
        run_export(FAMILY, ExportOptions(str(three), repository=tmp_path / "r" / "models"), lines.append)
    assert lines == []  # before any work, though it is not of the first component
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["models"]
    assert list((tmp_path / "r/models").iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> Path:
    """Leave no byte free on a file system."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        size = 2**20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    return filler


def test_export_is_refused_with_the_number_when_the_disk_is_too_small(three: Path, small_disk: Path) -> None:
    repository = small_disk / "models"
    filler = fill(small_disk)
    os.truncate(filler, filler.stat().st_size - 5 * 2**20)
    with pytest.raises(
        InsufficientResources, match=r"must have 16\.\d MB free for first 0\.0\d+ MB, .*, got 5\.\d+ MB; try"
    ):
        run_export(FAMILY, ExportOptions(str(three), repository=repository))
    assert list(repository.iterdir()) == []


def test_repository_is_as_it_was_when_the_disk_becomes_full(three: Path, small_disk: Path) -> None:
    repository = small_disk / "models"

    def fill_at_second(line: str) -> None:
        if "second: exporting" in line:
            fill(small_disk)

    options = ExportOptions(str(three), repository=repository)
    with pytest.raises(InsufficientResources, match=r"models: the file system became full .*No space left"):
        run_export(FAMILY, options, fill_at_second)
    assert list(repository.iterdir()) == []
    (small_disk / "filler").unlink()
    assert export(three, repository) == ["second", "third"]
    assert {path.name for path in repository.iterdir()} == MODELS


def test_other_errors_of_files_are_not_said_to_be_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), reporting_full_disk(tmp_path):
        (tmp_path / "absent").read_text()


def test_check_disk_asks_for_nothing_when_nothing_is_made(tmp_path: Path) -> None:
    check_disk(tmp_path / "absent", {})
    with pytest.raises(
        InsufficientResources, match=r"net 1000000000\.0 GB, got .* try a repository on another"
    ):
        check_disk(tmp_path / "absent", {"net": Requirements(10, 10**18, 0, 0)})


def test_check_memory_names_the_component_and_what_it_takes() -> None:
    check_memory({"small": Requirements(10, 40, 0, 600_000_000)})
    expert = Requirements(14_288_000_000_000, 10**12, 0, 62_900_000_000_000)
    with pytest.raises(InsufficientResources) as refused:
        check_memory({"small": Requirements(10, 40, 0, 600_000_000), "denoiser_high": expert})
    assert str(refused.value).startswith("denoiser_high: memory must be at least 62900.0 GB to export")
    assert "try a machine or a container with more memory" in str(refused.value)


def test_requirements_count_what_the_graph_keeps_in_each_precision(written: Path) -> None:
    net = FAMILY.plan(Checkpoint(written, "here"), FAMILY.axes).components[1]
    whole = 2 * (WIDTH * WIDTH + WIDTH)
    assert graph_requirements(net, Precision.FP32).parameters == whole
    assert graph_requirements(net, Precision.FP32).disk_bytes == 4 * whole
    assert graph_requirements(net, Precision.FP16) == graph_requirements(
        net, Precision.FP32
    )  # It has no bounds for another.
    net = replace(net, tolerance=dict.fromkeys(Precision, net.tolerance[Precision.FP32]))
    halves, bfloat = graph_requirements(net, Precision.FP16), graph_requirements(net, Precision.BF16)
    assert (halves.disk_bytes, halves.verification_bytes) == (2 * whole, 0)
    assert (bfloat.disk_bytes, bfloat.verification_bytes) == (2 * whole, 4 * whole)
    assert (
        graph_requirements(net, Precision.INT4).disk_bytes
        < graph_requirements(net, Precision.INT8).disk_bytes
        < halves.disk_bytes
    )


def test_weigh_is_what_the_exported_graphs_are(checkpoint: Path, exported: tuple[Path, object]) -> None:
    repository, _ = exported
    family = family_named("wan_t2v")
    with open_checkpoint(family, str(checkpoint)) as opened:
        plan = family.plan(opened, family.presets["tiny"].axes)
        weights = {
            f"wan_t2v_{each.name}/1/{each.graph}.onnx": graph_requirements(each, Precision.FP32)
            for each in plan.components
        }
    for file, weight in weights.items():
        held = onnx.load(repository / file).graph.initializer
        written = sum(onnx.numpy_helper.to_array(tensor).nbytes for tensor in held)
        # A tiny denoiser's tables of positions are more than a third of it, and no weights.
        assert 0.6 * written < weight.disk_bytes < 1.05 * written, file
