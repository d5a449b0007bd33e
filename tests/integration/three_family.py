"""A family of three small networks, each from a part of its own, the second in two shards."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import (
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
)

PARTS = ("first", "second", "third")
SHARDED = "second"
WIDTH = 64
BATCH = Axis("batch", 1, 2, 4)


class Net(ModelMixin, ConfigMixin):
    """Two layers."""

    @register_to_config
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(torch.relu(self.enter(x)))
        return out


def _load(checkpoint: Checkpoint, part: str, precision: Precision, loading: Loading) -> nn.Module:
    return checkpoint.load(part, Net, precision, loading)


def _plan(checkpoint: Checkpoint, axes: Sequence[Axis]) -> Plan:
    tensor = partial(TensorSpec, dtype=DType.FLOAT32, shape=("batch", WIDTH))
    components = tuple(
        Component(
            name=part,
            inputs=(tensor("x"),),
            outputs=(tensor("y"),),
            axes=tuple(axes),
            load=partial(_load, checkpoint, part),
            tolerance={Precision.FP32: Tolerance(1e-4, 1e-4, 0.9999)},
        )
        for part in PARTS
    )
    return Plan(components, ())


FAMILY = Family(
    name="three",
    upstream="none",
    summary="three networks",
    served=(),
    layout=tuple(Part(part, ("config.json",)) for part in PARTS),
    axes=(BATCH,),
    presets={},
    plan=_plan,
)


def write_checkpoint(folder: Path) -> None:
    """Write the three parts with random weights."""
    torch.manual_seed(0)
    for part in PARTS:
        Net().save_pretrained(folder / part, max_shard_size="17KB" if part == SHARDED else "1GB")
    index = json.loads((folder / SHARDED / "diffusion_pytorch_model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 2


def export_until_killed() -> None:
    """Export as the arguments of this process say, and be killed at the third component."""
    options = ExportOptions(checkpoint=sys.argv[1], repository=Path(sys.argv[2]))
    run_export(FAMILY, options, _end_at_third)


def _end_at_third(line: str) -> None:
    if "third: exporting" in line:
        os.kill(os.getpid(), signal.SIGKILL)
