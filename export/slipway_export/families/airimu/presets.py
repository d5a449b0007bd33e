"""Writer of random AirIMU checkpoints of the real size, with the layout and keys of the public ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from slipway_export.families.airimu.conf import CONF_FILE, WEIGHTS_FILE, read_conf
from slipway_export.families.airimu.network import build


def write_checkpoint(folder: Path, conf: str, seed: int) -> None:
    """Write a conf and matching random weights.

    Args:
        folder: Folder of the checkpoint; it must exist.
        conf: Text of the conf.
        seed: Seed of the weights.
    """
    (folder / CONF_FILE).write_text(conf, encoding="utf-8")
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        network = _shaped(build(read_conf(folder, folder.name)))
    finally:
        torch.random.set_rng_state(state)
    write_weights(folder, network.state_dict())


def write_weights(folder: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Write weights to a checkpoint's weights file, with upstream's other entries.

    Args:
        folder: Folder of the checkpoint.
        state: Weights by key.
    """
    weights = folder / WEIGHTS_FILE
    weights.parent.mkdir(exist_ok=True)
    content = {
        "epoch": 0,
        "model_state_dict": dict(state),
        "optimizer_state_dict": {},
        "scheduler_state_dict": {},
        "best_loss": 0.0,
    }
    torch.save(content, weights)


def _shaped(network: nn.Module) -> nn.Module:
    """Give the norms statistics as if they had been trained on signals around gravity.

    Fresh norms have no effect, so a graph without them would pass every comparison. The recurrent weights are
    doubled, so that a lost or swapped state changes the output: with random weights a state fades within a
    few features.
    """
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm1d):
                assert module.running_mean is not None
                assert module.running_var is not None
                nn.init.normal_(module.running_mean, 0, 0.3)
                nn.init.uniform_(module.running_var, 0.5, 2)
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, 0, 0.3)
            if isinstance(module, nn.GRU):
                recurrent = module.all_weights[0][1]
                recurrent.mul_(2)
    return network
