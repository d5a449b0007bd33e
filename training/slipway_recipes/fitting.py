"""Training loop of all recipes: AdamW, averaged weights, and saved state to resume from.

Every step seeds its data and its dropout with the seed and the step's number. An interrupted and resumed
training therefore gives the same weights as an uninterrupted one.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from slipway_recipes.recipe import Making

SAVED_EVERY_S = 60.0
_REPORTED_EVERY = 100
_PART, _BEFORE = ".part", ".before"

Loss = Callable[[nn.Module, int], Tensor]
"""Function that returns a step's loss from the network, in training mode, and the step's number, from 0."""


@dataclass(frozen=True)
class Schedule:
    """Hyperparameters of a network's training.

    Args:
        steps: Steps of the optimizer, 1 or more.
        learning_rate: Peak learning rate of AdamW. The rate rises during the warmup, then decays along a
            cosine to 1 % of the peak.
        warmup: Number of steps in which the learning rate rises.
        weight_decay: Weight decay of AdamW.
        clip: Largest norm of a step's gradient; larger gradients are clipped.
        ema: Decay of the moving average of the weights, 0 to below 1. Training returns the average.
    """

    steps: int
    learning_rate: float = 1e-3
    warmup: int = 100
    weight_decay: float = 1e-2
    clip: float = 1.0
    ema: float = 0.995

    def rate_at(self, step: int, steps: int) -> float:
        """Return a step's learning rate as a share of the peak, in a training of `steps` steps."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, steps - self.warmup)
        return 0.01 + 0.99 * (1 + math.cos(math.pi * min(done, 1.0))) / 2


class _Step:
    """Number of completed steps, as part of the saved state."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = int(state["done"])


def fit(network: nn.Module, loss: Loss, schedule: Schedule, making: Making, name: str) -> nn.Module:
    """Train a network, and resume from the state that an earlier process of the same run saved.

    Args:
        network: Network with its initial weights. It is moved to the GPU if there is one.
        loss: Loss of a step. It draws from torch's generator, or from a generator seeded with seed and step.
        schedule: Hyperparameters; `making.scale` reduces the number of steps.
        making: Seed, threads and the folder of the state.
        name: Name of the network within the recipe.

    Returns:
        A network with the averaged weights, in eval mode, on the CPU.
    """
    torch.set_num_threads(making.threads)
    steps = making.steps_of(schedule.steps)
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=schedule.learning_rate, weight_decay=schedule.weight_decay
    )
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule.rate_at(step, steps))
    network, optimizer, rates = accelerator.prepare(network, optimizer, rates)
    averaging = get_ema_multi_avg_fn(schedule.ema)  # type: ignore[no-untyped-call]
    mean = AveragedModel(network, multi_avg_fn=averaging, use_buffers=True)
    step = _Step()
    accelerator.register_for_checkpointing(mean, step)
    folder = making.state / name
    if (kept := _kept(folder)) is not None:
        accelerator.load_state(str(kept))
        making.report(f"{name}: going on after step {step.done} of {steps}")
    saved_s, began_s, began = time.monotonic(), time.monotonic(), step.done
    losses: list[float] = []
    network.train()
    while step.done < steps:
        torch.manual_seed(making.seed * 1_000_003 + step.done)
        found = loss(network, step.done)
        optimizer.zero_grad()
        accelerator.backward(found)
        accelerator.clip_grad_norm_(network.parameters(), schedule.clip)
        optimizer.step()
        rates.step()
        mean.update_parameters(network)
        step.done += 1
        losses.append(found.item())
        if step.done % _REPORTED_EVERY == 0:
            pace_s = (time.monotonic() - began_s) / (step.done - began)
            loss_now = sum(losses) / len(losses)
            making.report(f"{name}: step {step.done} of {steps}, loss {loss_now:.4f}, {pace_s:.2f} s each")
            losses.clear()
        if step.done == steps or time.monotonic() - saved_s >= SAVED_EVERY_S:
            _save(accelerator, folder)
            saved_s = time.monotonic()
    averaged: nn.Module = mean.module.cpu().eval()
    return averaged


def _kept(folder: Path) -> Path | None:
    """Return the folder of the last complete state, or None."""
    places = (folder, folder.with_name(folder.name + _BEFORE))
    return next((place for place in places if place.is_dir()), None)


def _save(accelerator: Accelerator, folder: Path) -> None:
    """Write the state, and keep the previous one until the new one is complete."""
    part, before = (folder.with_name(folder.name + ending) for ending in (_PART, _BEFORE))
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    accelerator.save_state(str(part))
    if folder.exists():
        shutil.rmtree(before, ignore_errors=True)
        folder.rename(before)
    part.rename(folder)
    shutil.rmtree(before, ignore_errors=True)
