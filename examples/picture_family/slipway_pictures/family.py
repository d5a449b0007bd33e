"""The family: its two components, the authored model around them, and a tiny checkpoint in DiT's layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    Preset,
    TensorSpec,
    Tolerance,
)
from slipway_pictures.facts import FILE, Facts
from slipway_pictures.request import CLASSES, PictureRequest
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from torch import nn

    from slipway_export.checkpoint.checkpoint import Checkpoint

NAME = "pictures"
SCHEDULER = "scheduler/scheduler_config.json"
MODELS = Path(__file__).resolve().parent / "models"
# One picture has a row, and another without its class for guidance.
AXES = (Axis("batch", 1, 2, 4),)
BOUND = {
    Precision.FP32: Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.99999),
    Precision.FP16: Tolerance(max_abs=0.1, relative_l2=2e-2, cosine=0.999),
}
TINY: dict[str, dict[str, Any]] = {
    "transformer": {
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "in_channels": 4,
        "out_channels": 8,
        "num_layers": 2,
        "sample_size": 8,
        "patch_size": 2,
        "num_embeds_ada_norm": CLASSES,
        "norm_elementwise_affine": False,
    },
    "vae": {
        "block_out_channels": [8, 8, 8, 8],
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
        "norm_num_groups": 4,
        "layers_per_block": 1,
        "latent_channels": 4,
    },
}


def plan(checkpoint: Checkpoint, axes: Sequence[Axis]) -> Plan:
    """Describe the models that a DiT checkpoint becomes.

    Raises:
        InvalidRequest: The checkpoint has another schedule than DiT's.
    """
    config, schedule = checkpoint.config("transformer/config.json"), checkpoint.config(SCHEDULER)
    if (kind := schedule.get("beta_schedule")) != "linear":
        raise InvalidRequest(f"{checkpoint.where(SCHEDULER)}: beta_schedule must be linear, got {kind!r}")
    facts = Facts(
        channels=config["in_channels"],
        sample_size=config["sample_size"],
        train_steps=schedule["num_train_timesteps"],
        beta_start=schedule["beta_start"],
        beta_end=schedule["beta_end"],
    )
    latents = (facts.channels, facts.sample_size, facts.sample_size)
    denoiser = Component(
        name="denoiser",
        inputs=(
            TensorSpec("latents", DType.FLOAT32, ("batch", *latents)),
            TensorSpec("timestep", DType.INT64, ("batch", 1), values=(0, facts.train_steps - 1)),
            TensorSpec("class_labels", DType.INT64, ("batch", 1), values=(0, CLASSES)),
        ),
        outputs=(TensorSpec("noise", DType.FLOAT32, ("batch", *latents)),),
        axes=tuple(axes),
        load=partial(_load_denoiser, checkpoint),
        tolerance=BOUND,
        rows=(1, 2),
    )
    # Each block of the VAE but the last doubles the sides.
    side = facts.sample_size * 2 ** (len(checkpoint.config("vae/config.json")["block_out_channels"]) - 1)
    decoder = Component(
        name="vae_decoder",
        inputs=(TensorSpec("latents", DType.FLOAT32, (1, *latents)),),
        outputs=(TensorSpec("sample", DType.FLOAT32, (1, 3, side, side)),),
        axes=(),
        load=partial(_load_decoder, checkpoint),
        tolerance=BOUND,
    )
    painter = AuthoredModel(
        PictureRequest.model,
        {f"1/{FILE}": json.dumps(asdict(facts)).encode()},
        source=MODELS / PictureRequest.model,
        request=PictureRequest,
    )
    return Plan((denoiser, decoder), (painter,))


def _load_denoiser(checkpoint: Checkpoint, precision: Precision, loading: Loading) -> nn.Module:
    from diffusers import DiTTransformer2DModel

    from slipway_pictures.network import Denoiser

    return Denoiser(checkpoint.load("transformer", DiTTransformer2DModel, precision, loading)).eval()


def _load_decoder(checkpoint: Checkpoint, precision: Precision, loading: Loading) -> nn.Module:
    from diffusers import AutoencoderKL

    from slipway_pictures.network import Decoder

    return Decoder(checkpoint.load("vae", AutoencoderKL, precision, loading)).eval()


def _write(folder: Path, seed: int) -> None:
    """Write a small random checkpoint as `DiTPipeline.save_pretrained` does."""
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel

    torch.manual_seed(seed)
    networks = DiTTransformer2DModel(**TINY["transformer"]), AutoencoderKL(**TINY["vae"])
    DiTPipeline(*networks, DDIMScheduler(clip_sample=False)).save_pretrained(folder)


FAMILY = Family(
    name=NAME,
    upstream="facebook/DiT-XL-2-256",
    summary="pictures of ImageNet's classes",
    served=(PictureRequest.model,),
    layout=(
        SCHEDULER,
        Part("transformer", ("config.json",), components=("denoiser",)),
        Part("vae", ("config.json",), components=("vae_decoder",)),
    ),
    axes=AXES,
    presets={
        "tiny": Preset(
            "random weights, 64 x 64 pixels",
            {"transformer/config.json": {"num_layers": TINY["transformer"]["num_layers"]}},
            AXES,
            _write,
        )
    },
    plan=plan,
    requests=(PictureRequest,),
)
