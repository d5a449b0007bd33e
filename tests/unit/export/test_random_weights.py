"""Checkpoints that are streamed to the disk: in the libraries' layout, the same from the same seed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from diffusers import WanPipeline, WanTransformer3DModel
from transformers import UMT5EncoderModel

from slipway_export.checkpoint import random_weights
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.checkpoint.random_weights import Normal, RandomPart, write_part
from slipway_export.families import family_named
from slipway_export.families.wan_t2v.presets import PRESETS, TINY
from slipway_export.families.wan_t2v.random_checkpoint import stream_checkpoint
from slipway_export.spec import Loading, Precision
from slipway_serving.protocol.errors import InvalidRequest

WAN = family_named("wan_t2v")


def written(folder: Path, seed: int = 0, experts: int = 2) -> Path:
    folder.mkdir()
    stream_checkpoint(folder, TINY.configs, seed, experts=experts)
    return folder


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("experts", [1, 2])
def test_layout_is_that_of_save_pretrained_when_a_checkpoint_is_streamed(
    experts: int, tmp_path: Path
) -> None:
    streamed = written(tmp_path / "streamed", experts=experts)
    pipeline = WanPipeline.from_pretrained(streamed, local_files_only=True, torch_dtype=torch.bfloat16)
    pipeline.save_pretrained(tmp_path / "saved")
    assert digests(streamed).keys() == digests(tmp_path / "saved").keys() | {"tokenizer/spiece.model"}
    index, saved = (
        json.loads((tmp_path / name / "model_index.json").read_text()) for name in ("streamed", "saved")
    )
    # Where it was loaded from.
    del saved["_name_or_path"]
    assert index == saved
    assert (index["transformer_2"][1] is None) == (experts == 1)
    with open_checkpoint(WAN, str(streamed)) as checkpoint:
        assert len(WAN.plan(checkpoint, TINY.axes).components) == 3 + experts
        # Every key and shape is checked as it is loaded.
        network = checkpoint.load("transformer", WanTransformer3DModel, Precision.FP32, Loading.READ)
        assert network.dtype is torch.float32


def test_shards_are_loaded_strictly_when_a_part_is_larger_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(tmp_path / "whole")
    monkeypatch.setattr(write_part, "__defaults__", (20_000,))
    sharded = written(tmp_path / "sharded")
    for part, network in (("transformer", WanTransformer3DModel), ("text_encoder", UMT5EncoderModel)):
        files = sorted(path.name for path in (sharded / part).glob("*.safetensors"))
        assert len(files) > 2
        assert files[0].endswith(f"-00001-of-{len(files):05}.safetensors")
        loaded, notes = network.from_pretrained(sharded / part, output_loading_info=True)
        assert not any(notes[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        expected = network.from_pretrained(whole / part).state_dict()
        assert all(torch.equal(tensor, expected[key]) for key, tensor in loaded.state_dict().items())
    with open_checkpoint(WAN, str(sharded)) as checkpoint:
        network = checkpoint.load("transformer", WanTransformer3DModel, Precision.FP32, Loading.READ)
        assert not network.training


def test_bytes_follow_from_the_seed_when_a_checkpoint_is_streamed(tmp_path: Path) -> None:
    first, again, other = (
        digests(written(tmp_path / name, seed)) for name, seed in (("first", 0), ("again", 0), ("other", 1))
    )
    assert first == again
    weights = [file for file in first if file.endswith("safetensors")]
    assert len(weights) == 4
    assert all(first[file] != other[file] for file in weights)
    experts = [file for file in weights if file.startswith("transformer")]
    assert len({first[file] for file in experts}) == 2


def test_numbers_have_their_distribution_when_a_tensor_is_drawn_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_weights, "_CHUNK", 1000)
    network = torch.nn.Sequential(torch.nn.Linear(400, 100), torch.nn.LayerNorm(100)).to("meta")
    write_part(tmp_path, RandomPart("part", network, "model", [("1.bias", Normal(3.0, 0.1))]), 0)
    from safetensors.torch import load_file

    found = load_file(tmp_path / "part" / "model.safetensors")
    assert found["0.weight"].std().item() == pytest.approx(400**-0.5, rel=0.05)
    assert not torch.equal(found["0.weight"].flatten()[:1000], found["0.weight"].flatten()[1000:2000])
    assert found["1.weight"].mean().item() == pytest.approx(1.0, abs=0.05)
    assert found["1.bias"].mean().item() == pytest.approx(3.0, abs=0.1)
    assert abs(found["0.bias"].mean().item()) < 0.02


@pytest.mark.parametrize("preset", ["1.3b", "a14b", "a14b-2-layers"])
def test_disk_is_named_with_the_number_when_a_preset_does_not_fit(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 10**9

    monkeypatch.setattr(random_weights.shutil, "disk_usage", lambda _: Usage)  # type: ignore[attr-defined]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # The summary says so too.
    size = PRESETS[preset].summary.split("; ")[1].removesuffix(" on disk")
    with (
        pytest.raises(InvalidRequest, match=rf"must have {size} free, got 1\.0 GB; try `slipway checkpoint`"),
        open_checkpoint(WAN, preset),
    ):
        pass
    assert not list(tmp_path.iterdir())
