"""The family: its components, the authored models around them, and a tiny checkpoint in its layout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipway_export.spec import (
    AuthoredModel,
    Axis,
    Component,
    DType,
    Family,
    Loading,
    NamedFile,
    Plan,
    Precision,
    Preset,
    StepInput,
    Stepped,
    TensorSpec,
    Tolerance,
)
from slipway_toy.request import ACTIONS, BLOCK_FRAMES, PIXELS_PER_LATENT, ToyWorldRequest
from slipway_toy.video_request import ToyVideoRequest

if TYPE_CHECKING:
    from torch import nn

    from slipway_export.checkpoint.checkpoint import Checkpoint

NAME = "toy"
MODELS = Path(__file__).resolve().parent / "models"
AXES = (Axis("height", 2, 3, 8), Axis("width", 2, 4, 8))
BOUND = {Precision.FP32: Tolerance(max_abs=1e-4, relative_l2=1e-5, cosine=0.99999)}
CONFIGS: dict[str, dict[str, Any]] = {
    "denoiser/config.json": {"channels": 4, "dim": 16, "window_frames": 6},
    "vae/config.json": {"channels": 4},
}
REQUESTS = (ToyWorldRequest, ToyVideoRequest)
STEPS = (1000, 500)
SHIFT = 5.0


def plan(checkpoint: Checkpoint, axes: Sequence[Axis]) -> Plan:
    """Describe what a toy checkpoint becomes."""
    config = checkpoint.config("denoiser/config.json")
    channels, dim, window = (int(config[name]) for name in ("channels", "dim", "window_frames"))
    held = f"{window - BLOCK_FRAMES} * height * width"
    latents = (1, channels, BLOCK_FRAMES, "height", "width")

    def tensor(name: str, *shape: int | str, initial: float | None = None) -> TensorSpec:
        return TensorSpec(name, DType.FLOAT32, shape, initial=initial)

    block = Component(
        name="world",
        graph="block",
        inputs=(
            tensor("latents", *latents),
            TensorSpec("timestep", DType.FLOAT32, (1, BLOCK_FRAMES), values=(0, 1000)),
            tensor("actions", 1, BLOCK_FRAMES, ACTIONS),
            tensor("condition", 1, channels, "height", "width"),
            TensorSpec("start", DType.INT64, (1,), values=(0, 8)),
            tensor("keys", 1, held, dim, initial=0.0),
            tensor("values", 1, held, dim, initial=0.0),
        ),
        outputs=(
            tensor("sample", *latents),
            tensor("next_keys", 1, held, dim),
            tensor("next_values", 1, held, dim),
        ),
        axes=tuple(axes),
        load=partial(_load, checkpoint, "Block"),
        tolerance=BOUND,
    )
    sides = (f"{PIXELS_PER_LATENT} * height", f"{PIXELS_PER_LATENT} * width")
    encoder = Component(
        name="image_encoder",
        inputs=(tensor("image", 1, 3, *sides),),
        outputs=(tensor("condition", 1, channels, "height", "width"),),
        axes=tuple(axes),
        load=partial(_load, checkpoint, "Encode"),
        tolerance=BOUND,
    )
    decoder = Component(
        name="decoder",
        inputs=(tensor("latents", *latents),),
        outputs=(tensor("sample", 1, 3, BLOCK_FRAMES, *sides),),
        axes=tuple(axes),
        load=partial(_load, checkpoint, "Decode"),
        tolerance=BOUND,
    )
    steps = Stepped(
        next=block,
        inputs={
            "latents": StepInput(axis=2, each_run=True),
            "timestep": StepInput(axis=1, each_run=True, committed=0.0),
            "actions": StepInput(axis=1),
            "start": StepInput(make=lambda step: np.array([step * BLOCK_FRAMES], np.int64)),
        },
        outputs={"sample": 2},
        steps=6,
        runs=len(STEPS) + 1,
        reference=lambda inputs: _load(checkpoint, "Block", Precision.FP32, Loading.READ).whole(inputs),
    )
    facts = {
        "axes": {axis.name: [axis.min, axis.opt, axis.max] for axis in axes},
        "channels": channels,
        "dim": dim,
        "window_frames": window,
        "steps": STEPS,
        "shift": SHIFT,
    }
    told = {"1/facts.json": json.dumps(facts).encode()}
    authored = tuple(
        AuthoredModel(request.model, told, source=MODELS / request.model, request=request)
        for request in REQUESTS
    )
    # The world keeps its window in a graph of its own; videos bring theirs to a model.
    denoiser = replace(block, name="denoiser", graph="model")
    return Plan((block, denoiser, encoder, decoder), authored, (steps,))


def _load(checkpoint: Checkpoint, view: str, precision: Precision, loading: Loading) -> Any:
    from slipway_toy import network

    part, kind = ("denoiser", network.ToyDenoiser) if view == "Block" else ("vae", network.ToyVae)
    made: nn.Module = getattr(network, view)(checkpoint.load(part, kind, precision, loading))
    return made.eval()


def _write(folder: Path, seed: int) -> None:
    import torch

    from slipway_toy import network

    torch.manual_seed(seed)
    for kind, part in ((network.ToyDenoiser, "denoiser"), (network.ToyVae, "vae")):
        kind(**CONFIGS[f"{part}/config.json"]).save_pretrained(folder / part)


def _config_beside(weights: Path) -> Mapping[str, Path]:
    """Return the configuration of a part, which lies beside its weights."""
    part = "vae" if "vae" in weights.stem else "denoiser"
    return {f"{part}/config.json": weights.with_name(f"{part}.json")}


WEIGHTS = "diffusion_pytorch_model.safetensors"
FAMILY = Family(
    name=NAME,
    upstream="nobody/toy-world",
    summary="a small world that is steered block by block",
    served=tuple(request.model for request in REQUESTS),
    layout=tuple(CONFIGS),
    axes=AXES,
    presets={"tiny": Preset("random weights, 16 to 64 pixels a side", CONFIGS, AXES, _write)},
    plan=plan,
    requests=REQUESTS,
    files={
        "denoiser-weights": NamedFile(f"denoiser/{WEIGHTS}", leads_to=_config_beside),
        "vae-weights": NamedFile(f"vae/{WEIGHTS}", leads_to=_config_beside),
    },
    sizes={"latent-height": "height"},
)
