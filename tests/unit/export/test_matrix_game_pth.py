"""The `.pth` files of a Matrix-Game checkpoint: their names onto the libraries' networks, and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from torch import Tensor
from torch.nn import functional

from slipway_export.checkpoint.renamed_weights import renamed_weights
from slipway_export.families.matrix_game import clip_vision
from slipway_export.families.matrix_game.clip_vision import HEAD_WIDTH, IMAGE_MEAN, IMAGE_STD, ImageEncoder
from slipway_export.families.matrix_game.random_vision import write_clip, write_vae
from slipway_export.networks import wan_vae_file
from slipway_serving.protocol.errors import InvalidRequest

State = dict[str, Any]
Load = Callable[[Path, str], torch.nn.Module]


@pytest.fixture(scope="module")
def vae_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vae") / "vae.pth"
    write_vae(path, seed=1)
    return path


@pytest.fixture(scope="module")
def clip_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.pth"
    write_clip(path, seed=1)
    return path


def read(path: Path) -> State:
    state: State = torch.load(path, weights_only=True)
    return state


def test_vae_names_are_those_of_diffusers_conversion_when_public_size() -> None:
    with torch.device("meta"):
        vae = AutoencoderKLWan()
    source_of = wan_vae_file.source_of(vae)
    ours = {key: source_of(key).key for key in vae.state_dict()}
    theirs = convert_wan_vae_to_diffusers({key: key for key in ours.values()})
    assert ours == theirs
    assert len(set(ours.values())) == len(ours)


@pytest.mark.parametrize(("base_dim", "blocks"), [(8, 1), (4, 2)])
def test_vae_is_configured_by_shapes_when_read(tmp_path: Path, base_dim: int, blocks: int) -> None:
    write_vae(tmp_path / "vae.pth", seed=0, base_dim=base_dim, num_res_blocks=blocks)
    vae = wan_vae_file.load_vae(tmp_path / "vae.pth", "vae")
    assert vae.config.base_dim == base_dim
    assert vae.config.num_res_blocks == blocks
    assert list(vae.config.dim_mult) == [1, 2, 4, 4]
    assert list(vae.config.temperal_downsample) == [False, True, True]
    assert (vae.config.scale_factor_spatial, vae.config.scale_factor_temporal) == (8, 4)
    state = read(tmp_path / "vae.pth")
    written = renamed_weights(vae, wan_vae_file.source_of(vae))
    assert written.keys() == state.keys()
    assert all(torch.equal(written[key], state[key]) for key in state)


def in_plain_torch(state: State, image: Tensor) -> Tensor:
    """The last block but one of a file's visual half, from its tensors alone."""

    def norm(x: Tensor, name: str) -> Tensor:
        weight, bias = state[f"visual.{name}.weight"], state[f"visual.{name}.bias"]
        return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[f"visual.{name}.weight"].T + state[f"visual.{name}.bias"]

    patches = state["visual.patch_embedding.weight"]
    side = math.isqrt(state["visual.pos_embedding"].shape[1] - 1) * patches.shape[-1]
    resized = functional.interpolate(image, size=(side, side), mode="bicubic", align_corners=False)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGE_MEAN, IMAGE_STD))
    pixels = ((resized + 1) / 2 - mean) / std
    x = functional.conv2d(pixels, patches, stride=patches.shape[-1]).flatten(2).mT
    x = torch.cat([state["visual.cls_embedding"].expand(len(x), -1, -1), x], 1)
    x = norm(x + state["visual.pos_embedding"], "pre_norm")
    blocks = 1 + max(int(key.split(".")[2]) for key in state if key.startswith("visual.transformer."))
    for name in (f"transformer.{i}" for i in range(blocks - 1)):
        qkv = linear(norm(x, f"{name}.norm1"), f"{name}.attn.to_qkv").unflatten(-1, (3, -1, HEAD_WIDTH))
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        weights = (query @ key.mT / HEAD_WIDTH**0.5).softmax(-1)
        x = x + linear((weights @ value).transpose(1, 2).flatten(2), f"{name}.attn.proj")
        hidden = functional.gelu(linear(norm(x, f"{name}.norm2"), f"{name}.mlp.0"))
        x = x + linear(hidden, f"{name}.mlp.2")
    return x


def test_image_encoder_gives_the_last_block_but_one_when_read(clip_file: Path) -> None:
    encoder = ImageEncoder(clip_vision.load_vision(clip_file, "clip"))
    image = torch.rand(2, 3, 40, 72, generator=torch.Generator().manual_seed(0)) * 2 - 1
    context = encoder(image)
    assert context.shape == (2, 5, 160)
    torch.testing.assert_close(context, in_plain_torch(read(clip_file), image), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("key", ["encoder.conv1.bias", "conv2.weight", "decoder.upsamples.3.shortcut.weight"])
def test_vae_is_refused_when_a_key_is_missing(vae_file: Path, tmp_path: Path, key: str) -> None:
    state = read(vae_file)
    del state[key]
    refused(wan_vae_file.load_vae, tmp_path, state, key)


@pytest.mark.parametrize(
    "key", ["visual.transformer.2.mlp.2.bias", "visual.pos_embedding", "visual.transformer.0.mlp.0.weight"]
)
def test_clip_is_refused_when_a_key_is_missing(clip_file: Path, tmp_path: Path, key: str) -> None:
    state = read(clip_file)
    del state[key]
    refused(clip_vision.load_vision, tmp_path, state, key)


def test_file_is_refused_when_a_tensor_is_unknown_of_another_shape_or_not_finite(
    vae_file: Path, clip_file: Path, tmp_path: Path
) -> None:
    vae, clip = read(vae_file), read(clip_file)
    nan = clip["visual.pre_norm.bias"] * math.nan
    refused(wan_vae_file.load_vae, tmp_path, vae | {"decoder.more": nan}, "unknown keys decoder.more")
    refused(clip_vision.load_vision, tmp_path, clip | {"visual.more": nan}, "unknown keys visual.more")
    refused(
        wan_vae_file.load_vae, tmp_path, vae | {"conv1.bias": nan}, r"conv1.bias of shape \[160\], not \[32\]"
    )
    refused(
        clip_vision.load_vision,
        tmp_path,
        clip | {"visual.pre_norm.bias": nan},
        "NaN or infinity in visual.pre",
    )
    half = clip["visual.transformer.0.attn.to_qkv.weight"][:240]
    refused(
        clip_vision.load_vision,
        tmp_path,
        clip | {"visual.transformer.0.attn.to_qkv.weight": half},
        r"to_qkv.weight of shape \[240, 160\], not \[480, 160\]",
    )


def test_clip_is_read_without_the_half_for_texts_when_it_is_left_out(clip_file: Path, tmp_path: Path) -> None:
    state = read(clip_file)
    assert any(key.startswith("textual.") for key in state)
    visual = {key: state[key] for key in state if not key.startswith(clip_vision.LEFT_OUT)}
    assert visual.keys() == {key for key in state if key.startswith("visual.")} - {"visual.head"}
    torch.save(visual, tmp_path / "clip.pth")
    assert clip_vision.vision_config(tmp_path / "clip.pth", "clip").num_hidden_layers == 3


def test_vae_is_refused_when_its_layers_tell_no_configuration(vae_file: Path, tmp_path: Path) -> None:
    state = read(vae_file)
    wide = state | {"conv2.weight": torch.zeros(48, 48, 1, 1, 1)}
    refused(wan_vae_file.load_vae, tmp_path, wide, "conv2.weight must have 16 channels, got 48")
    refused(
        wan_vae_file.load_vae, tmp_path, state | {"conv2.weight": torch.zeros(16)}, "tensor of 5 dimensions"
    )
    first = {key: state[key] for key in state if not key.startswith("encoder.downsamples.0.")}
    refused(
        wan_vae_file.load_vae, tmp_path, first, "encoder.downsamples.0.residual.6.weight must be a tensor"
    )
    none = {key: state[key] for key in state if not key.startswith("encoder.downsamples.")}
    refused(
        wan_vae_file.load_vae, tmp_path, none, "encoder.downsamples must have residual blocks at each size"
    )


def test_clip_is_refused_when_its_shapes_are_of_another_network(clip_file: Path, tmp_path: Path) -> None:
    state = read(clip_file)
    odd = {
        "visual.patch_embedding.weight": torch.zeros(96, 3, 14, 14),
        "visual.pos_embedding": torch.zeros(1, 7, 96),
    }
    one = {key: state[key] for key in state if ".transformer.1." not in key and ".transformer.2." not in key}
    refused(
        clip_vision.load_vision, tmp_path, state | odd, "multiple of 80 channels, got 96.*a square, got 7"
    )
    refused(clip_vision.load_vision, tmp_path, one, "at least 2 blocks, got 1")


@pytest.mark.parametrize("load", [wan_vae_file.load_vae, clip_vision.load_vision])
def test_file_is_refused_when_it_holds_code_or_no_dictionary(tmp_path: Path, load: Load) -> None:
    refused(load, tmp_path, {"conv2.weight": print}, "a pickle that calls")
    refused(load, tmp_path, [torch.zeros(2)], "must hold a dictionary, got list")
    with pytest.raises(InvalidRequest, match="the file must exist"):
        load(tmp_path / "none.pth", "the file")


def test_file_of_before_archives_is_read_whole_when_mapping_is_asked(vae_file: Path, tmp_path: Path) -> None:
    state = read(vae_file)
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    vae = wan_vae_file.load_vae(tmp_path / "old.pth", "vae")
    assert torch.equal(vae.quant_conv.weight, state["conv1.weight"])


def refused(load: Load, folder: Path, state: object, reason: str) -> None:
    torch.save(state, folder / "refused.pth")
    with pytest.raises(InvalidRequest, match=f"(?s)^the file.*{reason}"):
        load(folder / "refused.pth", "the file")
