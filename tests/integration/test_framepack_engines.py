"""Videos of `framepack_i2v` by ONNX Runtime, by PyTorch and by both, in process: one request, one result."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from framepack_fixtures import AXES, small_checkpoint, small_repository
from wan_reference import psnr

from slipway_export.engines.requested import TorchRequest
from slipway_export.families.framepack_i2v.family import FAMILY
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Engine
from slipway_serving.families.framepack_i2v.facts import Facts
from slipway_serving.families.framepack_i2v.pipeline import generate
from slipway_serving.families.framepack_i2v.request import ImageToVideoRequest
from slipway_serving.protocol.events import FramesPart
from slipway_serving.runtime.in_process import InProcessModels, read_config
from slipway_serving.runtime.interruption import Interruption

pytestmark = pytest.mark.long

PICTURE = np.random.default_rng(5).integers(0, 256, (4, 6, 3), np.uint8).repeat(8, 0).repeat(8, 1)
REQUEST = ImageToVideoRequest(
    image=PICTURE, prompt="a boat", seconds=2.4, height=32, width=48, steps=2, seed=7, output="frames"
)
TRANSFORMER = "framepack_i2v_transformer"


@pytest.fixture(scope="module")
def graphs(shared: Path) -> Path:
    return small_repository(shared)[0]


@pytest.fixture(scope="module")
def by_torch(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose networks are all served by PyTorch."""
    models = tmp_path_factory.mktemp("torch") / "models"
    options = ExportOptions(
        str(small_checkpoint(shared)), models, engine=Engine.TORCH, axes=AXES, verify_budget=1
    )
    assert all(row.max_abs == 0 for row in run_export(FAMILY, options).rows)
    return models


def video(models: Path) -> np.ndarray:
    """Return the frames of the request, each as it is when it is final."""
    facts = Facts.read(models / "framepack_i2v" / "1")
    with closing(InProcessModels(models, threads=1)) as opened:
        events = generate(REQUEST, facts, opened, Interruption("framepack_i2v", lambda: False))
        parts = [event for event in events if isinstance(event, FramesPart) and event.final]
    return np.concatenate([part.pixels for part in sorted(parts, key=lambda part: part.first_frame)])


def test_video_is_the_same_when_pytorch_serves_all_networks(graphs: Path, by_torch: Path) -> None:
    networks = {path.name for path in by_torch.iterdir() if (path / "1" / "network.json").is_file()}
    assert networks == {f"framepack_i2v_{name}" for name in FAMILY.parts_alone}
    assert not list(by_torch.rglob("*.onnx"))
    expected, found = video(graphs), video(by_torch)
    assert found.shape == (73, 32, 48, 3)
    print(f"all networks by torch: PSNR {psnr(found, expected):.1f} dB to ONNX Runtime")
    assert psnr(found, expected) >= 45


def test_video_is_the_same_when_the_repository_mixes_engines(
    graphs: Path, by_torch: Path, tmp_path: Path
) -> None:
    mixed = Path(shutil.copytree(graphs, tmp_path / "models"))
    shutil.rmtree(mixed / TRANSFORMER)
    shutil.copytree(by_torch / TRANSFORMER, mixed / TRANSFORMER)
    for key in ("input", "output", "max_batch_size"):
        assert read_config(mixed / TRANSFORMER)[key] == read_config(graphs / TRANSFORMER)[key]
    expected, found = video(graphs), video(mixed)
    print(f"the transformer by torch: PSNR {psnr(found, expected):.1f} dB to ONNX Runtime")
    assert psnr(found, expected) >= 45


def test_video_stays_close_when_the_transformer_has_weights_of_8_bits(
    shared: Path, graphs: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torchao")
    models = Path(shutil.copytree(graphs, tmp_path / "models"))
    options = ExportOptions(
        str(small_checkpoint(shared)),
        models,
        engine=Engine.TORCH,
        torch=TorchRequest(weights={"": "int8"}),
        components=("transformer",),
        axes=AXES,
        verify_budget=1,
    )
    run_export(FAMILY, options)
    expected, found = video(graphs), video(models)
    print(f"the transformer with int8 weights by torch: PSNR {psnr(found, expected):.1f} dB")
    assert 30 <= psnr(found, expected) < 100
