"""FramePack's cut transformer before any export: its parts chained are diffusers' network and its cache."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FirstBlockCacheConfig, HunyuanVideoFramepackTransformer3DModel
from torch import Tensor

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.framepack_i2v.cached import cut_transformer
from slipway_export.families.framepack_i2v.cached_network import Finish, Head, Tail
from slipway_export.families.framepack_i2v.family import FAMILY
from slipway_export.families.framepack_i2v.presets import PUBLIC_AXES, axes
from slipway_export.networks.first_block_cache import Change
from slipway_export.spec import Loading, Precision, TensorSpec
from slipway_export.verification.comparison import compute_reference
from slipway_serving.protocol.errors import InvalidRequest

VARIANT = FAMILY.variants["first-block-cache"]
CONFIG: dict[str, Any] = {
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_refiner_layers": 1,
    "text_embed_dim": 12,
    "pooled_projection_dim": 10,
    "rope_axes_dim": (4, 6, 6),
    "has_image_proj": True,
    "image_proj_dim": 14,
    "has_clean_x_embedder": True,
}


def network(dual: int = 2, single: int = 2) -> HunyuanVideoFramepackTransformer3DModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = {**CONFIG, "num_layers": dual, "num_single_layers": single}
        return HunyuanVideoFramepackTransformer3DModel(**config).eval().requires_grad_(False)


def inputs(seed: int, lengths: tuple[int, ...] = (5,), tokens: int = 7) -> dict[str, Tensor]:
    """Return the inputs of a forward at 3 x 5 tokens, which neither history's groups of 2 nor of 4 fill."""
    random = torch.Generator().manual_seed(seed)
    batch = len(lengths)

    def noise(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=random)

    def latents(frames: int) -> Tensor:
        return noise(16, frames, 6, 10)

    return {
        "hidden_states": latents(9),
        "timestep": 1000 * torch.rand(batch, generator=random),
        "encoder_hidden_states": noise(tokens, 12),
        "encoder_attention_mask": (torch.arange(tokens) < torch.tensor(lengths)[:, None]).long(),
        "pooled_projections": noise(10),
        "image_embeds": noise(5, 14),
        "indices_latents": torch.arange(10, 19),
        "guidance": torch.full((batch,), 9000.0),
        "latents_clean": latents(2),
        "indices_latents_clean": torch.tensor([0, 19]),
        "latents_history_2x": latents(2),
        "indices_latents_history_2x": torch.arange(20, 22),
        "latents_history_4x": latents(16),
        "indices_latents_history_4x": torch.arange(22, 38),
    }


def described(tensor: TensorSpec) -> tuple[Any, ...]:
    return tensor.name, tensor.dtype, tensor.shape


class Parts:
    """The parts of a network in a chain."""

    def __init__(self, whole: HunyuanVideoFramepackTransformer3DModel) -> None:
        own = copy.deepcopy(whole)
        self.head, self.tail, self.finish = Head(own), Tail(own), Finish(own)
        self.change = Change()

    def first(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run the head; return its outputs by name."""
        names = ("hidden", "history", "residual", "temb", "context", "context_mask", "cos", "sin")
        return dict(zip(names, self.head(*given.values()), strict=True))

    def others(self, first: dict[str, Tensor]) -> Tensor:
        """Return what the later blocks add."""
        taken: Tensor = self.tail(*(value for name, value in first.items() if name != "residual"))
        return taken

    def sample(self, first: dict[str, Tensor], added: Tensor) -> Tensor:
        """Return the flow."""
        flow: Tensor = self.finish(first["hidden"], added, first["temb"])
        return flow


@pytest.mark.parametrize(("dual", "single"), [(1, 1), (2, 0), (2, 2)])
@pytest.mark.parametrize("lengths", [(7,), (5,), (3, 6)], ids=["whole prompt", "cropped", "two prompts"])
def test_parts_in_a_chain_are_diffusers_network(dual: int, single: int, lengths: tuple[int, ...]) -> None:
    whole = network(dual, single)
    given, parts = inputs(1, lengths), Parts(whole)
    first = parts.first(given)
    expected = whole(**given, return_dict=False)[0]
    assert expected.std() > 0.1
    torch.testing.assert_close(parts.sample(first, parts.others(first)), expected, rtol=0, atol=5e-6)


def test_parts_give_what_diffusers_cache_gives_when_it_reuses_and_when_it_does_not() -> None:
    whole = network()
    parts, before, other = Parts(whole), inputs(1), inputs(2)
    after = {
        **before,
        "hidden_states": before["hidden_states"] + 0.05 * other["hidden_states"],
        "timestep": 0.9 * before["timestep"],
    }
    first, second = parts.first(before), parts.first(after)
    cached = parts.others(first)
    full, reused = parts.sample(first, cached), parts.sample(second, cached)
    computed = parts.sample(second, parts.others(second))
    assert not torch.allclose(reused, computed, atol=1e-3)
    measured = float(parts.change(second["residual"], first["residual"]))
    for threshold, wanted in ((measured * 1.01, reused), (measured * 0.99, computed)):
        theirs = copy.deepcopy(whole)
        theirs.enable_cache(FirstBlockCacheConfig(threshold=threshold))
        with theirs.cache_context("section"):
            torch.testing.assert_close(theirs(**before, return_dict=False)[0], full, rtol=0, atol=5e-6)
            torch.testing.assert_close(theirs(**after, return_dict=False)[0], wanted, rtol=0, atol=5e-6)


def test_parts_share_the_weights_of_the_network_and_have_each_once() -> None:
    whole = network()
    count = len(list(whole.parameters()))
    names = [weight for part in (Head(whole), Tail(whole), Finish(whole)) for weight in part.parameters()]
    assert len({id(weight) for weight in names}) == len(names) == count
    assert len(list(whole.parameters())) == count


def test_half_precision_leaves_in_float32_what_moves_everything() -> None:
    whole = network().bfloat16()
    given = inputs(1)
    head, tail = Head(whole), Tail(whole)
    *told, _, _, _, _ = outputs = head(*given.values())
    assert {value.dtype for value in outputs if value.is_floating_point()} == {torch.float32}
    assert head.transformer.time_text_embed.timestep_embedder.linear_1.weight.dtype is torch.float32
    assert head.transformer.x_embedder.proj.weight.dtype is torch.bfloat16
    hidden, history, _, temb = told
    added = tail(hidden, history, temb, *outputs[4:])
    exact = Parts(network())
    wanted = exact.others(exact.first(given))
    assert added.dtype is torch.float32
    assert torch.cosine_similarity(added.flatten(), wanted.flatten(), dim=0) > 0.99


@pytest.fixture(scope="module")
def tiny() -> Iterator[Checkpoint]:
    """The tiny checkpoint, opened."""
    with open_checkpoint(FAMILY, "tiny") as checkpoint:
        yield checkpoint


def test_variant_describes_the_same_model_with_the_same_tensors(tiny: Checkpoint) -> None:
    ranges = axes_of(FAMILY, tiny, {})
    plain, cut = FAMILY.plan(tiny, ranges), VARIANT.plan(tiny, ranges)
    whole, *others = plain.components
    head, change, tail, finish, *rest = cut.components
    assert [component.label for component in rest] == [component.label for component in others]
    assert [described(tensor) for tensor in (*head.inputs, *finish.outputs)] == [
        described(tensor) for tensor in (*whole.inputs, *whole.outputs)
    ]
    given = {tensor.name: tensor.shape for part in (head, tail) for tensor in part.outputs}
    taken = (*tail.inputs, *finish.inputs, change.inputs[0])
    assert all(given[tensor.name] == tensor.shape for tensor in taken)
    assert change.precision(Precision.FP16) is Precision.FP32
    assert finish.precision(Precision.INT8) is Precision.FP32
    assert head.keeps_float("transformer.context_embedder.time_text_embed.text_embedder.linear_1")
    added = {model.name: model.source for model in cut.authored}
    assert added.pop("framepack_i2v_transformer") == "framepack_i2v_cached_denoiser"
    assert added.keys() == {model.name for model in plain.authored}


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (4, 8), (6, 7)])
def test_described_sizes_are_those_of_the_network(tiny: Checkpoint, height: int, width: int) -> None:
    names = axes((1, 2, 8), (1, 4, 9), (1, 5, 5))
    point = {axis.name: axis.opt for axis in names} | {"token_height": height, "token_width": width}
    for part in VARIANT.plan(tiny, names).components[:3]:
        compute_reference(part, part.load(Precision.FP32, Loading.READ), {"here": point})


@pytest.mark.parametrize(("dual", "single"), [(0, 4), (1, 0)])
def test_transformer_is_refused_when_no_block_could_be_left_out(
    tiny: Checkpoint, dual: int, single: int
) -> None:
    whole = FAMILY.plan(tiny, axes_of(FAMILY, tiny, {})).components[0]
    config = tiny.config("transformer/config.json") | {"num_layers": dual, "num_single_layers": single}
    with pytest.raises(InvalidRequest, match=f"for a first-block cache, got {dual} and {single}"):
        cut_transformer(tiny, config, whole)


def test_variant_is_refused_when_the_checkpoint_has_no_transformer(tmp_path: Path) -> None:
    tokens = {"hidden_size": 8, "vocab_size": 9, "num_hidden_layers": 3, "max_position_embeddings": 7}
    (tmp_path / "text_encoder_2").mkdir()
    (tmp_path / "text_encoder_2" / "config.json").write_text(json.dumps(tokens))
    parts = {"text_encoder_2": str(tmp_path / "text_encoder_2")}
    with (
        open_checkpoint(FAMILY, "", parts) as checkpoint,
        pytest.raises(
            InvalidRequest, match="transformer must be among the parts for variant first-block-cache"
        ),
    ):
        VARIANT.plan(checkpoint, PUBLIC_AXES)
