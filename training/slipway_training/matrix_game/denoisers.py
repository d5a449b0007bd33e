"""Training of a mode's network: all blocks of a play at once, each behind the true ones before it.

A batch holds every play twice: clean, as the cache of a served world has it at timestep 0, and noisy. A noisy
block sees the clean frames before it and itself, so all blocks of a play are learnt in one run
(teacher forcing). Later the clean half is what the network itself makes of some noise, since a served world
sees its own frames. Sigmas are those of the mode's few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from slipway_export.modeling.causal_wan.attention import Over
from slipway_export.modeling.causal_wan.config import BLOCK_FRAMES, read_config
from slipway_export.modeling.causal_wan.network import CausalWan
from slipway_training.fitting import Schedule, fit
from slipway_training.flow_matching import TRAIN_TIMESTEPS, flow_loss
from slipway_training.matrix_game.latents import Encoded, Plays
from slipway_training.recipe import Making

# The mouse moves by a tenth where a key is 1: its first weights are larger by so much.
_MOUSE_GAIN = 30.0
_PROJECTED_GAIN = 0.3


class Taught:
    """Attends from the blocks of plays to themselves and to the clean frames before them.

    Its batches are clean plays and the same plays, noisy, one after the other.

    Args:
        frames: latent frames of a play, a multiple of a block's.
        window: frames that a block sees, its own included.
    """

    def __init__(self, frames: int, window: int) -> None:
        self.blocks = frames // BLOCK_FRAMES
        held = window - BLOCK_FRAMES
        places = torch.arange(self.blocks)[:, None] * BLOCK_FRAMES + torch.arange(-held, 0)
        own = torch.ones(self.blocks, BLOCK_FRAMES, dtype=torch.bool)
        self.there = torch.cat([places >= 0, own], dim=1)
        self.before = places.clamp_min(0)

    def __call__(self, _: str, over: Over, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See :class:`Attend`."""
        there = self.there.repeat(len(q), 1).to(q.device)
        out = over(self._own(q).flatten(0, 1), self._seen(k), self._seen(v), there)
        return torch.unflatten(out, 0, (len(q), self.blocks)).flatten(1, 2)

    def _own(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, 1, (self.blocks, BLOCK_FRAMES))

    def _seen(self, x: Tensor) -> Tensor:
        """Return the frames that each block sees, [batch * blocks, window, ...]."""
        clean, _ = x.chunk(2)
        before = clean[:, self.before]
        return torch.cat([torch.cat([before, before]), self._own(x)], dim=2).flatten(0, 1)


@dataclass(frozen=True)
class Course:
    """How a mode's network is trained.

    Args:
        schedule: of the optimizer.
        sigmas: of the noise that it learns to remove.
        batch: plays of a step.
        own_from: share of the steps after which a play's past may be what the network makes of it.
        own: how often it is.
    """

    schedule: Schedule
    sigmas: Sequence[float]
    batch: int = 4
    own_from: float = 0.4
    own: float = 0.5


def new_network(config: dict[str, object], visual_dim: int, seed: int) -> CausalWan:
    """Return a network whose blocks add little at first, and which hears the mouse.

    Args:
        config: content of a `config.json`.
        visual_dim: width of the image encoder's features.
        seed: of the weights.
    """
    torch.manual_seed(seed)
    network = CausalWan(read_config(config, "demo"), visual_dim)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith((".o.weight", "ffn.2.weight", "proj_mouse.weight", "proj_keyboard.weight")):
                weight.mul_(_PROJECTED_GAIN)
            elif name.endswith("mouse_mlp.0.weight"):
                weight[:, network.config.dim :].mul_(_MOUSE_GAIN)
            elif "modulation" in name:
                # Shift, scale and gate, shift, scale and gate: gates are open.
                weight.zero_()
                weight[:, 2::3] = 1.0 if weight.shape[1] > 2 else 0.0
    nn.init.zeros_(network.head.head.weight)
    nn.init.zeros_(network.head.head.bias)
    return network


def predicted(network: nn.Module, plays: Plays, past: Tensor, noisy: Tensor, sigmas: Tensor) -> Tensor:
    """Return the flow of noisy plays, each block behind the clean frames before it.

    Args:
        network: a `CausalWan`.
        plays: that they are of.
        past: [batch, 16, frames, height / 8, width / 8], clean or about so.
        noisy: of the same shape.
        sigmas: of each frame of `noisy`, [batch, frames].
    """
    assert isinstance(network, CausalWan)
    frames = noisy.shape[2]
    cross = [
        (torch.cat([keys, keys]), torch.cat([values, values]))
        for keys, values in network.crossing()(plays.visual_context)
    ]
    mouse = None if plays.mouse is None else torch.cat([plays.mouse, plays.mouse])
    flow: Tensor = network(
        torch.cat([past, noisy]),
        TRAIN_TIMESTEPS * torch.cat([torch.zeros_like(sigmas), sigmas]),
        torch.cat([plays.cond_concat, plays.cond_concat]),
        cross,
        (mouse, torch.cat([plays.keyboard, plays.keyboard])),
        torch.arange(frames, device=noisy.device)[None],
        Taught(frames, network.config.local_attn_size),
    )
    return flow[len(noisy) :].float()


def train_network(network: CausalWan, plays: Encoded, course: Course, making: Making, name: str) -> CausalWan:
    """Train a mode's network.

    Args:
        network: with its initial weights.
        plays: to learn from.
        course: how.
        making: seed, threads and state.
        name: of the network among the recipe's.

    Returns:
        The network with mean weights, float32, in eval mode.
    """
    sigmas_of = torch.tensor(course.sigmas)
    steps = making.steps_of(course.schedule.steps)

    def noised(clean: Tensor, sigmas: Tensor) -> tuple[Tensor, Tensor]:
        noise, share = torch.randn_like(clean), sigmas[:, None, :, None, None]
        return (1 - share) * clean + share * noise, noise

    def loss(network: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng([making.seed, step])
        device = next(network.parameters()).device
        drawn = plays.draw(random, course.batch).to(device)
        clean = drawn.latents
        blocks = clean.shape[2] // BLOCK_FRAMES

        def some() -> Tensor:
            return sigmas_of[torch.randint(len(sigmas_of), (len(clean), blocks))].to(device)

        past = clean
        if step > course.own_from * steps and random.random() < course.own:
            sigmas = some().repeat_interleave(BLOCK_FRAMES, dim=1)
            noisy, _ = noised(clean, sigmas)
            with torch.no_grad():
                flow = predicted(network, drawn, clean, noisy, sigmas)
            past = noisy - sigmas[:, None, :, None, None] * flow
        sigmas = some().repeat_interleave(BLOCK_FRAMES, dim=1)
        noisy, noise = noised(clean, sigmas)
        flow = predicted(network, drawn, past, noisy, sigmas)
        return flow_loss(flow, clean, noise)

    trained = fit(network, loss, course.schedule, making, name)
    assert isinstance(trained, CausalWan)
    return trained
