"""Components of a Wan checkpoint besides its VAE: the text encoder, and the denoisers, whole or cut."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.wan_t2v.conditioning import Conditioning
from slipway_export.families.wan_t2v.presets import PATCH, TEXT_TOKENS
from slipway_export.spec import Axis, Component, DType, Loading, Precision, TensorSpec, Tolerance
from slipway_export.verification.prompts import check_vocabulary, prompt_ids
from slipway_serving.families.wan_t2v.facts import FIRST_FRAME
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan
    from torch import nn

TRANSFORMER_TOLERANCE = {
    Precision.FP32: Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.99999),
    Precision.FP16: Tolerance(max_abs=0.1, relative_l2=2e-2, cosine=0.999),
    Precision.BF16: Tolerance(max_abs=0.5, relative_l2=5e-2, cosine=0.998),
    Precision.INT8: Tolerance(max_abs=1.0, relative_l2=8e-2, cosine=0.997),
    Precision.FP8: Tolerance(max_abs=2.0, relative_l2=0.2, cosine=0.985),
    Precision.INT4: Tolerance(max_abs=3.0, relative_l2=0.3, cosine=0.96),
}
# Each row of a prompt's embeddings belongs to one token; `row_cosine` bounds each row.
TEXT_TOLERANCE = {
    precision: replace(TRANSFORMER_TOLERANCE[precision], row_cosine=row_cosine)
    for precision, row_cosine in (
        (Precision.FP32, 0.99999),
        (Precision.FP16, 0.999),
        (Precision.BF16, 0.995),
        (Precision.INT8, 0.995),
        (Precision.FP8, 0.995),
        (Precision.INT4, 0.93),
    )
}
# The embedders, the modulation and the final projection are small and affect all later layers.
KEEP_FLOAT = ("*condition_embedder*", "*proj_out")
# The residual stream between blocks has no fixed scale, so the relative bounds decide and the absolute one is
# a safety net.
STREAM_TOLERANCE: dict[Precision, Tolerance] = {
    precision: replace(bounds, max_abs=10 * bounds.max_abs)
    for precision, bounds in TRANSFORMER_TOLERANCE.items()
    # The cache compares residuals. In the tiny network, 4-bit weights changed them by half (relative L2), and
    # FP8 by a quarter.
    if precision not in (Precision.INT4, Precision.FP8)
}
# The graphs that decide (`Change`) and project (`Finish`) stay in float32.
FLOAT_TOLERANCE = {Precision.FP32: TRANSFORMER_TOLERANCE[Precision.FP32]}


def text_encoder(checkpoint: Checkpoint) -> Component:
    """Describe the text encoder of a checkpoint."""
    file = "text_encoder/config.json"
    config = checkpoint.config(file)
    shape = ("batch", "tokens")
    if checkpoint.has("tokenizer"):
        check_vocabulary(checkpoint, "tokenizer", file, config["vocab_size"])

    def load(precision: Precision, loading: Loading) -> nn.Module:
        from transformers import UMT5Config, UMT5EncoderModel

        from slipway_export.families.wan_t2v.network import TextEncoder

        encoder = checkpoint.load(
            "text_encoder",
            UMT5EncoderModel,
            precision,
            loading,
            build=lambda: UMT5EncoderModel(UMT5Config.from_dict(config)),
            # SDPA's decomposition views a transposed tensor, which the exporter refuses.
            attn_implementation="eager",
        )
        return TextEncoder(encoder)

    def lower(module: nn.Module) -> AbstractContextManager[None]:
        from slipway_export.families.wan_t2v.network import sdpa_attention

        return sdpa_attention(module)

    return Component(
        name="text_encoder",
        inputs=(
            TensorSpec(
                "input_ids",
                DType.INT64,
                shape,
                example=lambda sizes: prompt_ids(checkpoint.file("tokenizer"), sizes),
            ),
            TensorSpec("attention_mask", DType.INT64, shape, ones=True),
        ),
        outputs=(TensorSpec("last_hidden_state", DType.FLOAT32, (*shape, config["d_model"])),),
        axes=(Axis("batch", 1, 2, 8), Axis("tokens", 1, 64, TEXT_TOKENS)),
        load=load,
        lower=lower,
        # T5's activations have outliers in the feed-forward (transformers keeps its `wo` in float32) and in
        # some channels of the residual stream, which is the input of every matrix product.
        outliers=("*",),
        tolerance=TEXT_TOLERANCE,
        tensorrt_excludes={Precision.FP16: "UMT5 overflows in fp16"},
        # Every request of a video repeats its negative prompt.
        cached=True,
    )


def denoiser(
    checkpoint: Checkpoint, part: str, name: str, axes: Mapping[str, Axis], conditioning: Conditioning
) -> Component:
    """Describe a denoiser of a checkpoint.

    Args:
        checkpoint: Checkpoint.
        part: Folder of the denoiser in the checkpoint.
        name: Name of the component.
        axes: Axes by name.
        conditioning: Conditioning of the checkpoint.

    Raises:
        InvalidRequest: The patch of the network has another size than (1, 2, 2).
    """
    config = checkpoint.config(f"{part}/config.json")
    if list(config["patch_size"]) != [1, PATCH, PATCH]:
        raise InvalidRequest(
            f"{checkpoint.where(part)}: {part}/config.json: patch_size must be [1, 2, 2], got"
            f" {config['patch_size']}"
        )

    def lower(module: nn.Module) -> AbstractContextManager[None]:
        from slipway_export.families.wan_t2v.network import rotation

        return rotation(module, fused=True)

    def restate(module: nn.Module) -> AbstractContextManager[None]:
        from slipway_export.families.wan_t2v.network import rotation

        return rotation(module, fused=False)

    def tensor(name: str, *shape: int | str) -> TensorSpec:
        return TensorSpec(name, DType.FLOAT32, ("batch", *shape))

    grid = ("latent_frames", "2 * token_height", "2 * token_width")
    timestep = ("latent_frames",) if conditioning.kind == FIRST_FRAME else ()
    inputs = [
        tensor("hidden_states", config["in_channels"], *grid),
        replace(tensor("timestep", *timestep), values=(0, 1000)),
        tensor("encoder_hidden_states", TEXT_TOKENS, config["text_dim"]),
    ]
    if conditioning.embedded:
        tokens, width = conditioning.embedding
        inputs.append(tensor("encoder_hidden_states_image", conditioning.embedded * tokens, width))
    return Component(
        name=name,
        inputs=tuple(inputs),
        outputs=(tensor("sample", config.get("out_channels") or config["in_channels"], *grid),),
        axes=tuple(axes[axis] for axis in ("batch", "latent_frames", "token_height", "token_width")),
        load=partial(_load_denoiser, checkpoint, part, conditioning),
        lower=lower,
        restate=restate,
        keep_float=KEEP_FLOAT,
        tolerance=TRANSFORMER_TOLERANCE,
        # One row without guidance, two with it.
        rows=(1, 2),
    )


def _load_denoiser(
    checkpoint: Checkpoint, part: str, conditioning: Conditioning, precision: Precision, loading: Loading
) -> nn.Module:
    from diffusers import WanTransformer3DModel

    from slipway_export.families.wan_t2v import network

    transformer = checkpoint.load(part, WanTransformer3DModel, precision, loading)
    if conditioning.embedded:
        return network.PictureDenoiser(transformer, conditioning.embedded)
    if conditioning.kind == FIRST_FRAME:
        return network.FrameTimestepDenoiser(transformer)
    return network.Denoiser(transformer)


def cut_denoiser(checkpoint: Checkpoint, part: str, whole: Component) -> list[Component]:
    """Describe a denoiser as four graphs that together compute the whole; see `modeling.wan_cached`."""
    config = checkpoint.config(f"{part}/config.json")
    if config["num_layers"] < 2:
        raise InvalidRequest(
            f"{checkpoint.where(part)}: {part}/config.json: num_layers must be at least 2 for a"
            f" first-block cache, got {config['num_layers']}"
        )
    dim = config["num_attention_heads"] * config["attention_head_dim"]

    def tensor(name: str, *shape: int | str) -> TensorSpec:
        return TensorSpec(name, DType.FLOAT32, ("batch", *shape))

    grid = ("latent_frames", "token_height", "token_width")
    hidden, residual, cached, tail = (
        tensor(name, *grid, dim) for name in ("hidden", "residual", "cached_residual", "tail_residual")
    )
    temb, timestep_proj = tensor("temb", dim), tensor("timestep_proj", 6, dim)
    context = tensor("context", TEXT_TOKENS, dim)
    inputs = {
        "Head": whole.inputs,
        "Change": (residual, cached),
        "Tail": (hidden, timestep_proj, context),
        "Finish": (hidden, tail, temb),
    }
    outputs = {
        "Head": (hidden, residual, temb, timestep_proj, context),
        "Change": (tensor("change"),),
        "Tail": (tail,),
        "Finish": whole.outputs,
    }
    return [
        replace(
            whole,
            graph=network.lower(),
            inputs=inputs[network],
            outputs=outputs[network],
            load=partial(_load_cut, checkpoint, part, network),
            tolerance=STREAM_TOLERANCE if network in ("Head", "Tail") else FLOAT_TOLERANCE,
        )
        for network in inputs
    ]


def _load_cut(
    checkpoint: Checkpoint, part: str, network: str, precision: Precision, loading: Loading
) -> nn.Module:
    from diffusers import WanTransformer3DModel

    from slipway_export.families.wan_t2v import cached_network
    from slipway_export.networks.first_block_cache import Change

    if network == "Change":  # has no weights
        return Change()
    cut: type[nn.Module] = getattr(cached_network, network)
    return cut(checkpoint.load(part, WanTransformer3DModel, precision, loading))


def load_vae(checkpoint: Checkpoint, loading: Loading) -> AutoencoderKLWan:
    """Load the VAE of a checkpoint in float32."""
    from diffusers import AutoencoderKLWan

    return checkpoint.load("vae", AutoencoderKLWan, Precision.FP32, loading)
