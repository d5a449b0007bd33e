"""The components of Matrix-Game beside its network, exported and compared with PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.matrix_game.random_vision import write_clip, write_vae
from slipway_export.families.matrix_game.vision import (
    CLIP_FILE,
    VAE_FILE,
    image_encoder,
    vae_decoder,
    vae_encoder,
)
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Axis, Family, Loading, Plan, Precision
from slipway_serving.protocol.errors import InvalidRequest

pytestmark = pytest.mark.long

AXES = (Axis("batch", 1, 1, 2), Axis("token_height", 1, 2, 3), Axis("token_width", 1, 2, 4))


def plan(checkpoint: Checkpoint, axes: Sequence[Axis]) -> Plan:
    by_name = {axis.name: axis for axis in axes}
    return Plan((image_encoder(checkpoint, by_name), vae_encoder(checkpoint, by_name)), ())


FAMILY = Family("vision", "none", "for this test", (), (VAE_FILE, CLIP_FILE), AXES, {}, plan)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sizes instead of four, which is a graph half as large."""
    folder = tmp_path_factory.mktemp("vision")
    write_vae(folder / VAE_FILE, 0, dim_mult=(1, 2), temperal_downsample=(True,))
    write_clip(folder / CLIP_FILE, 0, blocks=2)
    return folder


def test_encoders_equal_pytorch_when_exported(checkpoint: Path, tmp_path: Path) -> None:
    result = run_export(FAMILY, ExportOptions(checkpoint=str(checkpoint), repository=tmp_path / "models"))
    shapes = {(row.graph, row.point.split()[0]): row.shape for row in result.rows}
    assert shapes["image_encoder", "max"] == (2, 5, 160)
    assert shapes["vae_encoder", "max"] == (1, 16, 20, 6, 8)
    assert {point for _, point in shapes} == {"min", "opt", "max", "unseen"}
    assert max(row.relative_l2 for row in result.rows) < 1e-5


def test_decoder_is_wans_own_when_its_weights_are_of_a_pth_file(checkpoint: Path) -> None:
    first, following, decoding = vae_decoder(
        Checkpoint(checkpoint, "here"), {axis.name: axis for axis in AXES}
    )
    latents = torch.randn(1, 16, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    sample, *caches = first.load(Precision.FP32, Loading.READ)(latents[:, :, :1])
    frames = [sample]
    for each in latents[:, :, 1:].split(1, dim=2):
        sample, *caches = following.load(Precision.FP32, Loading.READ)(each, *caches)
        frames.append(sample)
    whole = decoding.reference({"latents": latents})["sample"]
    assert whole.std() > 0.2
    torch.testing.assert_close(torch.cat(frames, dim=2), whole, atol=1e-5, rtol=0)
    assert [tensor.name for tensor in following.inputs[1:3]] == ["cache_00", "cache_01"]


def test_components_are_refused_when_the_file_is_of_something_else(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / VAE_FILE).write_bytes((checkpoint / CLIP_FILE).read_bytes())
    by_name = {axis.name: axis for axis in AXES}
    with pytest.raises(InvalidRequest, match=f"^checkpoint here: {VAE_FILE}: conv2.weight must be"):
        vae_encoder(Checkpoint(tmp_path, "here"), by_name)
