"""FramePack's transformer, cut into the graphs of a first-block cache; see `modeling.framepack_cached`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.framepack_i2v.encoders import lengths_mask
from slipway_export.spec import Component, DType, Loading, Precision, TensorSpec
from slipway_serving.protocol.axis_expressions import Size
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int | str, ...]
GRID: Shape = ("latent_frames", "token_height", "token_width")
# The history inputs in the order of their tokens. Each number is how many latent frames, rows and columns of
# full-size tokens one history token covers.
HISTORY = (("latents_history_4x", 4), ("latents_history_2x", 2), ("latents_clean", 1))


def cut_transformer(checkpoint: Checkpoint, config: Mapping[str, Any], whole: Component) -> list[Component]:
    """Describe a transformer as four graphs that together compute the whole.

    Args:
        checkpoint: Checkpoint with a part `transformer`.
        config: Configuration of that part.
        whole: Component of the uncut transformer.

    Raises:
        InvalidRequest: The transformer has too few blocks to skip any.
    """
    _check(checkpoint, config)
    inputs = _inputs(whole, config)
    hidden, _, temb, *_ = inputs["Tail"]
    residual, _ = inputs["Change"]
    tail = replace(hidden, name="tail_residual")
    inputs["Finish"] = (hidden, tail, temb)
    outputs = {
        "Head": (*inputs["Tail"][:2], residual, *inputs["Tail"][2:]),
        "Change": (TensorSpec("change", DType.FLOAT32, ("batch",)),),
        "Tail": (tail,),
        "Finish": whole.outputs,
    }
    return [
        _cut(checkpoint, whole, network, inputs[network], outputs[network])
        for network in ("Head", "Change", "Tail", "Finish")
    ]


def _check(checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
    dual, single = config["num_layers"], config["num_single_layers"]
    if dual < 1 or dual + single < 2:
        raise InvalidRequest(
            f"{checkpoint.where('transformer')}: transformer/config.json: num_layers must be at least 1, and"
            f" at least 2 with num_single_layers, for a first-block cache, got {dual} and {single}"
        )


def _inputs(whole: Component, config: Mapping[str, Any]) -> dict[str, tuple[TensorSpec, ...]]:
    """Return the inputs of all graphs but the last, by the network's name."""
    inputs = {tensor.name: tensor for tensor in whole.inputs}
    head_size = config["attention_head_dim"]
    dim = config["num_attention_heads"] * head_size
    history = " + ".join(_tokens(inputs[name].shape[2], group) for name, group in HISTORY)
    all_tokens = f"{history} + {' * '.join(map(str, GRID))}"
    context = f"text_tokens + {inputs['image_embeds'].shape[1]}"

    def tensor(name: str, *shape: int | str) -> TensorSpec:
        return TensorSpec(name, DType.FLOAT32, shape)

    residual = tensor("residual", "batch", all_tokens, dim)
    return {
        "Head": whole.inputs,
        "Change": (residual, replace(residual, name="cached_residual")),
        "Tail": (
            tensor("hidden", "batch", *GRID, dim),
            tensor("history", "batch", history, dim),
            tensor("temb", "batch", dim),
            tensor("context", "batch", context, dim),
            TensorSpec("context_mask", DType.INT64, ("batch", context), example=lengths_mask),
            tensor("rotation_cos", all_tokens, head_size // 2),
            tensor("rotation_sin", all_tokens, head_size // 2),
        ),
    }


def _tokens(frames: int | str, group: int) -> str:
    """Return the token count of `frames` latent frames if a token covers `group` places along each side."""
    assert isinstance(frames, int)  # The history of a section has a fixed length.
    sides = GRID[1:] if group == 1 else [f"ceil({side} / {group})" for side in GRID[1:]]
    return " * ".join(map(str, (-(-frames // group), *sides)))


def _cut(
    checkpoint: Checkpoint,
    whole: Component,
    network: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> Component:
    """Describe the graph of one network of the cached transformer."""
    sizes = [size for tensor in (*inputs, *outputs) for size in tensor.sizes if isinstance(size, Size)]
    named = frozenset[str]().union(*(size.axes for size in sizes))
    if network in ("Head", "Tail"):
        # The residual stream between blocks has no fixed scale, so the relative bounds decide.
        bounds = {key: replace(bound, max_abs=10 * bound.max_abs) for key, bound in whole.tolerance.items()}
        kinds: dict[str, Any] = {"lower": whole.lower, "keep_float": whole.keep_float}
    else:
        # `Change` decides and `Finish` projects; both stay in float32 and have no attention.
        bounds, kinds = {Precision.FP32: whole.tolerance[Precision.FP32]}, {}
    return Component(
        name=whole.name,
        graph=network.lower(),
        inputs=inputs,
        outputs=outputs,
        axes=tuple(axis for axis in whole.axes if axis.name in named),
        load=partial(_load, checkpoint, network),
        tolerance=bounds,
        **kinds,
    )


def _load(checkpoint: Checkpoint, network: str, precision: Precision, loading: Loading) -> nn.Module:
    from diffusers import HunyuanVideoFramepackTransformer3DModel

    from slipway_export.families.framepack_i2v import cached_network
    from slipway_export.networks.first_block_cache import Change

    if network == "Change":  # has no weights
        return Change()
    cut: type[nn.Module] = getattr(cached_network, network)
    return cut(checkpoint.load("transformer", HunyuanVideoFramepackTransformer3DModel, precision, loading))
