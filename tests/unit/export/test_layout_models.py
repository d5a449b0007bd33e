"""Wan2.2-TI2V-5B and I2V-A14B in their authors' layout, and TI2V's VAE in a single file."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import layout_files as files
import pytest
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import save_file

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.networks.wan_vae_file import config_of_shapes, scale_of_latents, source_of
from slipway_export.spec import Loading, Precision
from slipway_serving.protocol.errors import InvalidRequest

WAN = family_named("wan_t2v")
PUBLIC_VAE = WAN.presets["ti2v-5b"].configs["vae/config.json"]
Shapes = dict[str, tuple[int, ...]]


def convolution(name: str, into: int, out: int, *kernel: int) -> Shapes:
    return {f"{name}.weight": (out, into, *kernel), f"{name}.bias": (out,)}


def block(name: str, into: int, out: int) -> Shapes:
    found = {f"{name}.residual.0.gamma": (into, 1, 1, 1), f"{name}.residual.3.gamma": (out, 1, 1, 1)}
    found |= convolution(f"{name}.residual.2", into, out, 3, 3, 3)
    found |= convolution(f"{name}.residual.6", out, out, 3, 3, 3)
    return found | (convolution(f"{name}.shortcut", into, out, 1, 1, 1) if into != out else {})


def sizes(name: str, widths: list[int], blocks: int, temporal: list[bool], frames: int) -> Shapes:
    """Return the shapes of a half's sizes: blocks, then the change of size, each in a list of its own."""
    inner, found = name.rpartition(".")[2], {}
    for size, (into, out) in enumerate(pairwise(widths)):
        place = f"{name}.{size}.{inner}"
        for number in range(blocks):
            found |= block(f"{place}.{number}", into if number == 0 else out, out)
        if size < len(widths) - 2:
            found |= convolution(f"{place}.{blocks}.resample.1", out, out, 3, 3)
            if temporal[size]:
                found |= convolution(f"{place}.{blocks}.time_conv", out, out * frames, 3, 1, 1)
    return found


def ends(name: str, width: int, last: int, out: int) -> Shapes:
    """Return the shapes of a half's middle and head."""
    middle = f"{name}.middle.1"
    return (
        block(f"{name}.middle.0", width, width)
        | {f"{middle}.norm.gamma": (width, 1, 1)}
        | convolution(f"{middle}.to_qkv", width, 3 * width, 1, 1)
        | convolution(f"{middle}.proj", width, width, 1, 1)
        | block(f"{name}.middle.2", width, width)
        | {f"{name}.head.0.gamma": (last, 1, 1, 1)}
        | convolution(f"{name}.head.2", last, out, 3, 3, 3)
    )


def published_vae() -> Shapes:
    """Return the shapes of `Wan2.2_VAE.pth`, as wan/modules/vae2_2.py of Wan-Video/Wan2.2 builds it."""
    down, up = [160, 160, 320, 640, 640], [1024, 1024, 1024, 512, 256]
    return (
        convolution("encoder.conv1", 12, 160, 3, 3, 3)
        | sizes("encoder.downsamples", down, 2, [False, True, True], 1)
        | ends("encoder", 640, 640, 96)
        | convolution("conv1", 96, 96, 1, 1, 1)
        | convolution("conv2", 48, 48, 1, 1, 1)
        | convolution("decoder.conv1", 48, 1024, 3, 3, 3)
        | sizes("decoder.upsamples", up, 3, [True, True, False], 2)
        | ends("decoder", 1024, 256, 12)
    )


def test_vae_has_the_published_names_and_shapes_when_it_is_that_of_ti2v_5b() -> None:
    published = published_vae()
    config = config_of_shapes(published, "vae")
    known = dict(PUBLIC_VAE) | {"dim_mult": [1, 2, 4, 4], "scale_factor_temporal": 4}
    assert {key: config[key] for key in known} == known
    with torch.device("meta"):
        vae = AutoencoderKLWan.from_config(config)
    source = source_of(vae)
    assert {source(k).key: tuple(tensor.shape) for k, tensor in vae.state_dict().items()} == published


def test_scale_of_latents_is_the_published_one_unless_the_checkpoint_states_another() -> None:
    known = scale_of_latents(48, "vae", {"latents_mean": [0.0] * 16, "latents_std": [1.0] * 16})
    # Three numbers of wan/modules/vae2_2.py.
    assert (known["latents_mean"][0], known["latents_mean"][47]) == (-0.2289, -0.0667)
    assert known["latents_std"][39] == 1.6887
    assert len(known["latents_mean"]) == len(known["latents_std"]) == 48
    stated = {"latents_mean": [0.5] * 48, "latents_std": [2.0] * 48}
    assert scale_of_latents(48, "vae", stated) == stated
    assert scale_of_latents(16, "vae", {}) == {}
    with pytest.raises(InvalidRequest, match="must have 16 or 48 channels, got 32; .* try a config.json"):
        scale_of_latents(32, "vae", {})


@pytest.fixture(scope="module", params=["tiny-ti2v", "tiny-i2v"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A small checkpoint of a model with pictures, in diffusers' layout. Read only."""
    folder = tmp_path_factory.mktemp(request.param)
    WAN.presets[request.param].write(folder, 0)
    return request.param, folder


def networks(source: str, parts: dict[str, str] | None = None) -> dict[str, dict[str, torch.Tensor]]:
    """Return the weights of each network of a checkpoint's plan, by its label."""
    with open_checkpoint(WAN, source, parts) as opened:
        components = WAN.plan(opened, axes_of(WAN, opened, {})).components
        return {c.label: c.load(Precision.FP32, Loading.READ).state_dict() for c in components}


def assert_same(
    found: dict[str, dict[str, Any]], wanted: dict[str, dict[str, Any]], but: tuple[str, ...] = ()
) -> None:
    assert found.keys() == wanted.keys()
    for label, state in wanted.items():
        assert found[label].keys() == state.keys()
        for key, tensor in state.items():
            assert key in but or torch.equal(found[label][key], tensor), (label, key)


def test_networks_are_the_same_when_the_checkpoint_is_in_wans_original_layout(
    model: tuple[str, Path], tmp_path: Path
) -> None:
    preset, checkpoint = model
    folder = files.original(checkpoint, tmp_path / "wan")
    # The scale of TI2V's latents is the published one, not that of the small checkpoint.
    scale = ("latents_mean", "latents_std") if preset == "tiny-ti2v" else ()
    assert_same(networks(str(folder)), networks(str(checkpoint)), scale)
    with open_checkpoint(WAN, str(folder)) as opened:
        index, scheduler = (
            opened.config(file) for file in ("model_index.json", "scheduler/scheduler_config.json")
        )
        assert scheduler["flow_shift"] == 5.0
        if preset == "tiny-i2v":
            assert (index["_class_name"], index["boundary_ratio"]) == ("WanImageToVideoPipeline", 0.9)
        else:
            assert (index["expand_timesteps"], index["boundary_ratio"]) == (True, None)
            assert opened.config("vae/config.json")["latents_std"][39] == 1.6887


def test_vae_is_the_same_when_it_is_a_single_file(model: tuple[str, Path], tmp_path: Path) -> None:
    _, checkpoint = model
    save_file(files.vae_state(checkpoint), file := tmp_path / "wan2.2_vae.safetensors")
    parts = {"vae": str(file)}
    with open_checkpoint(WAN, str(checkpoint), parts) as opened:
        found = opened.config("vae/config.json")
    stated = json.loads((checkpoint / "vae/config.json").read_text())
    assert {key: stated[key] for key in found} == found
    assert_same(networks(str(checkpoint), parts), networks(str(checkpoint)))
