"""Training of a mode's network on all blocks of a play at once, by teacher forcing.

A batch contains every play twice: clean, as in the cache of a served world at timestep 0, and noisy. A noisy
block sees itself and the clean frames before it, so one pass trains all blocks of a play. Later in the
training, the network's own predictions replace the clean half at times, since a served world sees its own
frames. The sigmas are those of the mode's few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from slipway_export.families.matrix_game.causal_wan.attention import Over
from slipway_export.families.matrix_game.causal_wan.config import BLOCK_FRAMES, read_config
from slipway_export.families.matrix_game.causal_wan.network import CausalWan
from slipway_recipes.fitting import Schedule, fit
from slipway_recipes.flow_matching import TRAIN_TIMESTEPS, flow_loss
from slipway_recipes.matrix_game.latents import Encoded, Plays
from slipway_recipes.recipe import Making

# The mouse moves by 0.1 where a key is 1, so its initial weights are larger by this factor.
_MOUSE_GAIN = 30.0
_PROJECTED_GAIN = 0.3


class Taught:
    """Attention from the blocks of plays to themselves and to the clean frames before them.

    Its batches contain clean plays, followed by the same plays with noise.

    Args:
        frames: Latent frames of a play, a multiple of those of a block.
        window: Number of frames that a block sees, its own included.
    """

    def __init__(self, frames: int, window: int) -> None:
        self.blocks = frames // BLOCK_FRAMES
        held = window - BLOCK_FRAMES
        places = torch.arange(self.blocks)[:, None] * BLOCK_FRAMES + torch.arange(-held, 0)
        own = torch.ones(self.blocks, BLOCK_FRAMES, dtype=torch.bool)
        self.there = torch.cat([places >= 0, own], dim=1)
        self.before = places.clamp_min(0)

    def __call__(self, _: str, over: Over, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute the attention; see :class:`Attend`."""
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
    """Hyperparameters of the training of a mode's network.

    Args:
        schedule: Hyperparameters of the optimizer.
        sigmas: Noise levels that it learns to remove.
        batch: Plays per step.
        own_from: Share of the steps after which the network's own prediction may replace a play's past.
        own: Share of the later steps in which it does.
    """

    schedule: Schedule
    sigmas: Sequence[float]
    batch: int = 4
    own_from: float = 0.4
    own: float = 0.5


def new_network(config: dict[str, object], visual_dim: int, seed: int) -> CausalWan:
    """Return an untrained network whose blocks add little at first and which responds to the mouse.

    Args:
        config: Content of a `config.json`.
        visual_dim: Width of the image encoder's features.
        seed: Seed of the weights.
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
                # The order is shift, scale, gate, shift, scale, gate. Only the gates are 1.
                weight.zero_()
                weight[:, 2::3] = 1.0 if weight.shape[1] > 2 else 0.0
    nn.init.zeros_(network.head.head.weight)
    nn.init.zeros_(network.head.head.bias)
    return network


def predicted(network: nn.Module, plays: Plays, past: Tensor, noisy: Tensor, sigmas: Tensor) -> Tensor:
    """Predict the flow of noisy plays, where each block sees the clean frames before it.

    Args:
        network: Network, a `CausalWan`.
        plays: Plays that give the conditions.
        past: Clean or nearly clean latents, [batch, 16, frames, height / 8, width / 8].
        noisy: Noisy latents of the same shape.
        sigmas: Noise level of each frame of `noisy`, [batch, frames].
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
    """Train a mode's network by flow matching.

    Args:
        network: Network with its initial weights.
        plays: Encoded plays to train on.
        course: Hyperparameters of the training.
        making: Seed, threads and state folder.
        name: Name of the network within the recipe.

    Returns:
        The network with averaged weights, float32, in eval mode.
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
