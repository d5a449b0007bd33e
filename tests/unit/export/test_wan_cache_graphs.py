"""The cut denoiser before any export: its parts chained are diffusers' network, its description is whole."""

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import FirstBlockCacheConfig, WanTransformer3DModel

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.families.wan_t2v.cached_network import Finish, Head, Tail
from slipway_export.families.wan_t2v.presets import TINY
from slipway_export.graph.onnx import example_inputs
from slipway_export.networks.first_block_cache import Change
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Loading, Precision
from slipway_serving.protocol.errors import InvalidRequest

FAMILY = family_named("wan_t2v")
VARIANT = FAMILY.variants["first-block-cache"]


def network(layers: int) -> WanTransformer3DModel:
    torch.manual_seed(0)
    config = {**TINY.configs["transformer/config.json"], "num_layers": layers}
    return WanTransformer3DModel.from_config(config).eval()


def inputs(seed: int, batch: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn(batch, 16, 3, 6, 10, generator=generator)
    text = torch.randn(batch, 512, 32, generator=generator)
    return latents, torch.rand(batch, generator=generator) * 1000, text


@pytest.mark.parametrize("layers", [2, 5])
def test_parts_in_a_chain_are_the_whole_network(layers: int) -> None:
    whole = network(layers)
    latents, timestep, text = inputs(1, batch=2)
    with torch.no_grad():
        hidden, _, temb, timestep_proj, context = Head(whole)(latents, timestep, text)
        actual = Finish(whole)(hidden, Tail(whole)(hidden, timestep_proj, context), temb)
        expected = whole(latents, timestep, text, return_dict=False)[0]
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_parts_give_what_diffusers_cache_gives_when_it_reuses_and_when_it_does_not() -> None:
    whole = network(4)
    head, change, tail, finish = Head(whole), Change(), Tail(whole), Finish(whole)
    first, (_, later, _) = inputs(1), inputs(2)
    second = (first[0] + 0.05 * inputs(3)[0], later, first[2])
    with torch.no_grad():
        hidden, residual, temb, timestep_proj, context = head(*first)
        cached = tail(hidden, timestep_proj, context)
        full = finish(hidden, cached, temb)
        hidden, next_residual, temb, timestep_proj, context = head(*second)
        measured = float(change(next_residual, residual))
        reused = finish(hidden, cached, temb)
        computed = finish(hidden, tail(hidden, timestep_proj, context), temb)
    assert not torch.allclose(reused, computed, atol=1e-3)
    for threshold, wanted in ((measured * 1.01, reused), (measured * 0.99, computed)):
        theirs = network(4)
        theirs.enable_cache(FirstBlockCacheConfig(threshold=threshold))
        with torch.no_grad(), theirs.cache_context("cond"):
            torch.testing.assert_close(theirs(*first, return_dict=False)[0], full, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(theirs(*second, return_dict=False)[0], wanted, rtol=1e-5, atol=1e-5)


def test_each_weight_is_in_one_part_only() -> None:
    whole = network(3)
    names = [
        name for part in (Head(whole), Change(), Tail(whole), Finish(whole)) for name in part.parameters()
    ]
    assert len({id(weight) for weight in names}) == len(names) == len(list(whole.parameters()))


def test_variant_describes_the_same_models_with_the_same_tensors(checkpoint: Path) -> None:
    with open_checkpoint(FAMILY, str(checkpoint)) as opened:
        axes = axes_of(FAMILY, opened, {})
        plain, cut = FAMILY.plan(opened, axes), VARIANT.plan(opened, axes)
    whole = {component.name: component for component in plain.components}
    assert {component.name for component in cut.components} == set(whole)
    for name in ("denoiser_high", "denoiser_low"):
        head, change, tail, finish = [part for part in cut.components if part.name == name]
        assert head.inputs == whole[name].inputs
        assert finish.outputs == whole[name].outputs
        given = {tensor.name: tensor for part in (head, tail) for tensor in part.outputs}
        assert all(given[tensor.name] == tensor for tensor in (*tail.inputs, *finish.inputs))
        assert [tensor.name for tensor in change.inputs] == ["residual", "cached_residual"]
        assert change.precision(Precision.FP16) is Precision.FP32
    added = {model.name: model.source for model in cut.authored}
    assert added["wan_t2v_denoiser_low"] == "wan_t2v_cached_denoiser"
    assert {model.name for model in plain.authored} == {name for name in added if "denoiser" not in name}


def test_change_is_the_mean_of_each_branch_alone(checkpoint: Path) -> None:
    with open_checkpoint(FAMILY, str(checkpoint)) as opened:
        plan = VARIANT.plan(opened, axes_of(FAMILY, opened, {}))
    component = next(part for part in plan.components if part.graph == "change")
    a, b = example_inputs(component, component.points()["opt"]).values()
    change = component.load(Precision.FP32, Loading.READ)(torch.from_numpy(a), torch.from_numpy(b))
    wanted = [np.abs(x - y).mean() / np.abs(y).mean() for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(change.numpy(), wanted, rtol=1e-5)


def test_export_is_refused_when_the_family_has_no_such_variant(checkpoint: Path, tmp_path: Path) -> None:
    options = ExportOptions(str(checkpoint), tmp_path / "repository", variant="last-block-cache")
    with pytest.raises(InvalidRequest, match="variant must be first-block-cache, got 'last-block-cache'"):
        run_export(FAMILY, options)
