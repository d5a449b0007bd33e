"""The training loop of all recipes: AdamW, the mean of the weights, and a state that outlives the process.

Every step draws its data and its dropout from the seed and its own number, so a training that was ended and
goes on makes the same weights as one that was not.
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

from slipway_training.recipe import Making

SAVED_EVERY_S = 60.0
_REPORTED_EVERY = 100
_PART, _BEFORE = ".part", ".before"

Loss = Callable[[nn.Module, int], Tensor]
"""From the network, in training mode, and the step's number, from 0, to what the step makes smaller."""


@dataclass(frozen=True)
class Schedule:
    """How a network is trained.

    Args:
        steps: of the optimizer, 1 or more.
        learning_rate: of AdamW at its highest: it rises for the first steps, then falls as a cosine to 1 %.
        warmup: steps for which it rises.
        weight_decay: of AdamW.
        clip: norm that a step's gradient is cut to.
        ema: how much of the mean weights a step keeps, 0 to below 1; the mean is what is returned.
    """

    steps: int
    learning_rate: float = 1e-3
    warmup: int = 100
    weight_decay: float = 1e-2
    clip: float = 1.0
    ema: float = 0.995

    def rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step of so many, as a share of the highest."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, steps - self.warmup)
        return 0.01 + 0.99 * (1 + math.cos(math.pi * min(done, 1.0))) / 2


class _Step:
    """The number of steps that are done, among what is saved."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = int(state["done"])


def fit(network: nn.Module, loss: Loss, schedule: Schedule, making: Making, name: str) -> nn.Module:
    """Train a network, from where an earlier process of the same making left it.

    Args:
        network: with its initial weights; on a GPU afterwards where there is one.
        loss: what a step makes smaller; it draws from torch's generator, or from one of seed and step.
        schedule: how; `making.scale` shortens it.
        making: seed, threads and the folder of the state.
        name: of the network among those of the recipe.

    Returns:
        A network with the mean weights, in eval mode, on the CPU.
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
    """Return the folder of the last state that is whole."""
    places = (folder, folder.with_name(folder.name + _BEFORE))
    return next((place for place in places if place.is_dir()), None)


def _save(accelerator: Accelerator, folder: Path) -> None:
    """Write the state; a process that ends meanwhile leaves the one before."""
    part, before = (folder.with_name(folder.name + ending) for ending in (_PART, _BEFORE))
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    accelerator.save_state(str(part))
    if folder.exists():
        shutil.rmtree(before, ignore_errors=True)
        folder.rename(before)
    part.rename(folder)
    shutil.rmtree(before, ignore_errors=True)
