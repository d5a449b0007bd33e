"""Wan video: T2V-A14B, I2V-A14B and TI2V-5B of Wan2.2, and Wan2.1-T2V, in the layout of diffusers.

The checkpoint's `model_index.json` and the parts' `config.json` give every size below; no value of a
particular checkpoint is hard-coded here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.known_words import known_words
from slipway_export.families.wan_t2v.conditioning import check_widths, conditioning_of, vae_encoder
from slipway_export.families.wan_t2v.presets import EXAMPLE_FILE, PATCH, PRESETS, PUBLIC_AXES
from slipway_export.networks.wan_vae import video_decoder
from slipway_export.spec import (
    AuthoredModel,
    Axis,
    Component,
    DType,
    Family,
    Loading,
    Part,
    Plan,
    Precision,
    TensorSpec,
    Tolerance,
    Variant,
)
from slipway_export.verification.prompts import check_vocabulary, prompt_ids
from slipway_serving.families.wan_t2v.facts import CHANNELS, FIRST_FRAME, TEXT
from slipway_serving.families.wan_t2v.request import Denoising, TextToVideoRequest, listed_defaults
from slipway_serving.protocol.diffusion.requests import PromptEmbeds, PromptRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.video.requests import Decoding

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan
    from torch import nn

    from slipway_serving.diffusion.videos.sizes import StateSize

NAME = "wan_t2v"
# WanPipeline's max_sequence_length: prompts are padded with zeros to this number of embeddings.
TEXT_TOKENS = 512
SCHEDULER_FILE = "scheduler/scheduler_config.json"

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


def plan(checkpoint: Checkpoint, axes: Sequence[Axis], *, first_block_cache: bool = False) -> Plan:
    """Describe the models that a Wan checkpoint becomes.

    Args:
        checkpoint: Checkpoint; only its configurations are read.
        axes: Ranges of the family's axes.
        first_block_cache: True if each denoiser is cut into graphs that an authored model runs, so that
            requests may ask it to reuse the outputs of its later blocks.

    Raises:
        InvalidRequest: The checkpoint is none of this family.
    """
    index = checkpoint.config("model_index.json")
    where = f"checkpoint {checkpoint.source}: model_index.json"
    conditioning = conditioning_of(index, where)
    if first_block_cache and conditioning != TEXT:
        raise InvalidRequest(
            f"{where}: variant must be left out for a checkpoint that takes pictures, got first-block-cache,"
            " which is for text-to-video checkpoints"
        )
    experts = _experts(index, where)
    check_widths(checkpoint, experts.values(), conditioning)
    _check_schedules(checkpoint)
    by_name = {axis.name: axis for axis in axes}
    vae = partial(_load_vae, checkpoint)
    first, following, stepped = video_decoder(checkpoint.config("vae/config.json"), vae, by_name)
    components = [_text_encoder(checkpoint)]
    for name, part in experts.items():
        whole = _denoiser(checkpoint, part, name, by_name, conditioning)
        components += _cut_denoiser(checkpoint, part, whole) if first_block_cache else [whole]
    encoder = vae_encoder(checkpoint, vae, by_name, conditioning)
    facts = partial(_pipeline_facts, checkpoint, index, experts, by_name, first_block_cache)
    cached = experts if first_block_cache else ()
    usual, ranges = _usual_and_ranges(checkpoint, by_name)
    ranges["image"] = (int(conditioning == CHANNELS), int(conditioning != TEXT))
    authored = (
        *(
            AuthoredModel(f"{NAME}_{name}", source="wan_t2v_cached_denoiser", request=Denoising)
            for name in cached
        ),
        AuthoredModel(
            "wan_t2v_tokenizer", {"1/tokenizer": checkpoint.file("tokenizer")}, request=PromptRequest
        ),
        AuthoredModel("wan_t2v_vae_decoder", request=Decoding),
        AuthoredModel("wan_t2v_prompt", request=PromptRequest, events=(PromptEmbeds,)),
        AuthoredModel(
            "wan_t2v",
            {"1/pipeline.json": facts},
            request=TextToVideoRequest,
            usual=usual | listed_defaults(checkpoint.additions.schedule.steps),
            ranges=ranges,
            words=known_words(checkpoint),
            examples=_examples(checkpoint),
        ),
    )
    return Plan((*components, *encoder, first, following), authored, (stepped,))


def _examples(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the prompt that comes with a checkpoint."""
    if not checkpoint.has(EXAMPLE_FILE):
        return {}
    return {"prompt": checkpoint.file(EXAMPLE_FILE).read_text(encoding="utf-8").strip()}


def _experts(index: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the name of the checkpoint's part for each denoiser."""
    second = index.get("transformer_2") or [None, None]
    ratio = index.get("boundary_ratio")
    if second[1] is None:
        if ratio is not None:
            raise InvalidRequest(f"{where}: boundary_ratio must be null without transformer_2, got {ratio}")
        return {"denoiser_high": "transformer"}
    if not isinstance(ratio, float) or not 0.0 < ratio < 1.0:
        raise InvalidRequest(
            f"{where}: boundary_ratio must be between 0 and 1 with transformer_2, got {ratio}"
        )
    return {"denoiser_high": "transformer", "denoiser_low": "transformer_2"}


def _check_schedules(checkpoint: Checkpoint) -> None:
    """Refuse a scheduler that the served pipeline cannot use, with the pipeline's own check."""
    from slipway_serving.families.wan_t2v.pipeline import check_schedules

    # Only an export needs the scheduler; a network that PyTorch serves may come without it.
    if checkpoint.has(SCHEDULER_FILE):
        where = f"{checkpoint.where(SCHEDULER_FILE)}: {SCHEDULER_FILE}"
        check_schedules(checkpoint.config(SCHEDULER_FILE), where)


def _text_encoder(checkpoint: Checkpoint) -> Component:
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


def _denoiser(
    checkpoint: Checkpoint, part: str, name: str, axes: dict[str, Axis], conditioning: str
) -> Component:
    """Describe a denoiser of a checkpoint."""
    config = checkpoint.config(f"{part}/config.json")
    if list(config["patch_size"]) != [1, PATCH, PATCH]:
        raise InvalidRequest(
            f"{checkpoint.where(part)}: {part}/config.json: patch_size must be [1, 2, 2], got"
            f" {config['patch_size']}"
        )

    def load(precision: Precision, loading: Loading) -> nn.Module:
        from diffusers import WanTransformer3DModel

        from slipway_export.families.wan_t2v.network import Denoiser, FrameTimestepDenoiser

        network = FrameTimestepDenoiser if conditioning == FIRST_FRAME else Denoiser
        return network(checkpoint.load(part, WanTransformer3DModel, precision, loading))

    def lower(module: nn.Module) -> AbstractContextManager[None]:
        from slipway_export.families.wan_t2v.network import rotation

        return rotation(module, fused=True)

    def restate(module: nn.Module) -> AbstractContextManager[None]:
        from slipway_export.families.wan_t2v.network import rotation

        return rotation(module, fused=False)

    grid = ("latent_frames", "2 * token_height", "2 * token_width")
    timestep = ("batch", "latent_frames") if conditioning == FIRST_FRAME else ("batch",)
    out_channels = config.get("out_channels") or config["in_channels"]
    return Component(
        name=name,
        inputs=(
            TensorSpec("hidden_states", DType.FLOAT32, ("batch", config["in_channels"], *grid)),
            TensorSpec("timestep", DType.FLOAT32, timestep, values=(0, 1000)),
            TensorSpec("encoder_hidden_states", DType.FLOAT32, ("batch", TEXT_TOKENS, config["text_dim"])),
        ),
        outputs=(TensorSpec("sample", DType.FLOAT32, ("batch", out_channels, *grid)),),
        axes=tuple(axes[axis] for axis in ("batch", "latent_frames", "token_height", "token_width")),
        load=load,
        lower=lower,
        restate=restate,
        keep_float=KEEP_FLOAT,
        tolerance=TRANSFORMER_TOLERANCE,
        # One row without guidance, two with it.
        rows=(1, 2),
    )


def _cut_denoiser(checkpoint: Checkpoint, part: str, whole: Component) -> list[Component]:
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


def _load_vae(checkpoint: Checkpoint, loading: Loading) -> AutoencoderKLWan:
    from diffusers import AutoencoderKLWan

    return checkpoint.load("vae", AutoencoderKLWan, Precision.FP32, loading)


def _usual_and_ranges(
    checkpoint: Checkpoint, axes: Mapping[str, Axis]
) -> tuple[dict[str, int | float], dict[str, tuple[int, int]]]:
    """Return the video size for which the graphs are tuned, and the smallest and the largest video."""
    config = checkpoint.config("vae/config.json")
    temporal, spatial = config.get("scale_factor_temporal", 4), config.get("scale_factor_spatial", 8)
    names = ("latent_frames", "token_height", "token_width")

    def size(latent_frames: int, token_height: int, token_width: int) -> dict[str, int]:
        return {
            "frames": temporal * (latent_frames - 1) + 1,
            "height": PATCH * spatial * token_height,
            "width": PATCH * spatial * token_width,
        }

    smallest, usual, largest = (
        size(*(getattr(axes[name], end) for name in names)) for end in ("min", "opt", "max")
    )
    return dict(usual), {name: (smallest[name], largest[name]) for name in smallest}


def _pipeline_facts(
    checkpoint: Checkpoint,
    index: dict[str, Any],
    experts: dict[str, str],
    axes: dict[str, Axis],
    first_block_cache: bool,
) -> bytes:
    """Return `pipeline.json`: the facts about the checkpoint that the served pipeline needs."""
    from slipway_export.families.wan_t2v.network import fit_latent_rgb

    vae = _load_vae(checkpoint, Loading.READ)
    weight, bias = fit_latent_rgb(vae)
    models = {
        name: f"{NAME}_{name}" if name in experts else None for name in ("denoiser_high", "denoiser_low")
    }
    models_of_all = {"prompt": f"{NAME}_prompt", **models, "vae_decoder": f"{NAME}_vae_decoder"}
    facts = {
        "scheduler": checkpoint.config(SCHEDULER_FILE),
        "boundary_ratio": index.get("boundary_ratio"),
        "latent_channels": vae.config.z_dim,
        "vae_scale_factor_spatial": vae.config.scale_factor_spatial,
        "vae_scale_factor_temporal": vae.config.scale_factor_temporal,
        "patch_size": [1, PATCH, PATCH],
        "text_tokens": TEXT_TOKENS,
        "axes": {
            axis.name: [axis.min, axis.opt, axis.max]
            for axis in (axes["latent_frames"], axes["token_height"], axes["token_width"])
        },
        "latent_rgb": {"weight": weight, "bias": bias},
        "models": models_of_all,
    }
    if first_block_cache:
        facts["first_block_cache"] = True
    conditioning = conditioning_of(index, "model_index.json")
    if conditioning != TEXT:
        facts["conditioning"] = conditioning
        facts["models"] = {**models_of_all, "vae_encoder": f"{NAME}_vae_encoder"}
    facts |= checkpoint.additions.schedule.facts
    return (json.dumps(facts, indent=2) + "\n").encode()


def _state_size(folder: Path) -> StateSize:
    from slipway_serving.families.wan_t2v.pipeline import usual_state_size

    return usual_state_size(folder)


FAMILY = Family(
    name=NAME,
    upstream="Wan-AI/Wan2.2-T2V-A14B-Diffusers",
    summary="text to video, two experts, streamed progress",
    requests=(TextToVideoRequest,),
    served=(NAME, "wan_t2v_prompt"),
    layout=(
        "model_index.json",
        Part("tokenizer"),
        Part("text_encoder", ("config.json",)),
        Part("transformer", ("config.json",), lora="denoiser_high"),
        # The expert for low noise; model_index.json says if the checkpoint has one.
        Part("transformer_2", ("config.json",), optional=True, lora="denoiser_low"),
        Part("vae", ("config.json",)),
        Part("scheduler", ("scheduler_config.json",)),
    ),
    axes=PUBLIC_AXES,
    presets=PRESETS,
    plan=plan,
    state_size=_state_size,
    takes_schedule=True,
    variants={
        "first-block-cache": Variant(
            "denoisers that requests may ask to reuse what their later blocks gave (cache_threshold)",
            partial(plan, first_block_cache=True),
        )
    },
)
