"""The network on one block of frames, with the keys and values of earlier frames as tensors.

A block attends to itself and to the `local_attn_size - 3` frames before it, so it passes on the keys and
values of its last frames: `next_X` is the `X` of the following block. The caller runs a block once per
denoising step with the same `X`, discards the `next_X` of these runs, and keeps those of a last run on clean
latents at timestep 0. Nothing is shifted; if the window holds one whole earlier block (6 frames), `next_X` is
exactly what the block computed. Before the first block `X` is zeros; `start` tells the graph to mask them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from slipway_export.families.matrix_game.causal_wan.attention import Over, rotate
from slipway_export.families.matrix_game.causal_wan.config import BLOCK_FRAMES, Config
from slipway_export.families.matrix_game.causal_wan.network import CausalWan, time_rotations
from slipway_export.families.matrix_game.causal_wan.whole import BlockCausal


def cross_names(config: Config) -> list[str]:
    """Return the names of the first picture's keys and values, for each block of the network in order."""
    return [f"cross_{kind}_{index:02}" for index in range(config.num_layers) for kind in ("keys", "values")]


def cache_names(config: Config) -> list[str]:
    """Return the names of the caches, in the order of the network's inputs and outputs."""
    attentions = [f"self_{index:02}" for index in range(config.num_layers)]
    for kind in ("mouse",) * config.action.enable_mouse + ("keyboard",):
        attentions += [f"{kind}_{index:02}" for index in sorted(config.action.blocks)]
    return [
        f"{kind}_{part}_{index}"
        for kind, _, index in (name.partition("_") for name in attentions)
        for part in ("keys", "values")
    ]


def key_names(config: Config) -> list[str]:
    """Return the names of the caches of keys, in the order of :func:`cache_names`."""
    return [name for name in cache_names(config) if name.split("_")[1] == "keys"]


class CacheWindow:
    """Attention from one block of frames to itself and to the cached frames.

    Args:
        held: Keys and values of earlier frames by name of the cache, [batch, held_frames, ...] each.
        start: Position of the block in the world, [batch], int64.
    """

    def __init__(self, held: dict[str, Tensor], start: Tensor) -> None:
        self.held, self.start = held, start
        self.left: dict[str, Tensor] = {}

    def __call__(self, name: str, over: Over, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend as :class:`Attend` describes, and store in `left` the keys and values for the next block."""
        kind, _, index = name.partition("_")
        keys, values = (
            self._joined(f"{kind}_{part}_{index}", new) for part, new in (("keys", k), ("values", v))
        )
        # Distance of each cached frame to the block's start. Frames before the world's first are masked.
        before = torch.arange(keys.shape[1] - BLOCK_FRAMES, -BLOCK_FRAMES, -1, device=q.device)
        return over(q, keys, values, self.start[:, None] >= before)

    def _joined(self, name: str, new: Tensor) -> Tensor:
        held = self.held[name]
        joined = torch.cat([held.to(new.dtype), new], dim=1)
        count = held.shape[1]
        # A window of up to two blocks needs only new frames, which saves a copy of the others.
        last = new[:, BLOCK_FRAMES - count :] if count <= BLOCK_FRAMES else joined[:, BLOCK_FRAMES:]
        self.left[name] = last.float()
        return joined


class BlockDenoiser(nn.Module):
    """Denoiser of one block of three latent frames.

    Args:
        network: Network with a window (`local_attn_size` above 3).

    Raises:
        InvalidRequest: The network has no window.
    """

    def __init__(self, network: CausalWan) -> None:
        super().__init__()
        self.network = network
        self.names, self.crossed = cache_names(network.config), cross_names(network.config)
        self.held_frames = network.config.held_frames

    def forward(
        self, noisy_input: Tensor, timestep: Tensor, cond_concat: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Predict the flow of a block, and the caches for the next block.

        Args:
            noisy_input: Noisy latents, [batch, 16, 3, height / 8, width / 8], float32.
            timestep: Timesteps of the frames, [batch, 3], float32, 0 to 1000.
            cond_concat: Mask and latents of the first picture, [batch, 20, 3, height / 8, width / 8],
                float32.
            *tensors: Further inputs in this order. `mouse_cond` [batch, 20, 2] if the network has a mouse;
                `keyboard_cond` [batch, 20, keys]; `start` [batch], int64; the tensors of :func:`cross_names`,
                [batch, 257, heads, size]; those of :func:`cache_names`: self-attention and mouse [batch,
                held_frames, tokens, heads, size], keyboard [batch, held_frames, heads, size]. The actions are
                the rows from 12 frames before frame ``4 * start`` of the video to 7 after it; rows before the
                first frame repeat that frame's row. `start` is the position of the block's first latent frame
                in the world.

        Returns:
            `flow_pred`, same shape as `noisy_input`; then one `next_X`, same shape as X, for each X of
            :func:`cache_names`.
        """
        net, dtype = self.network, self.network.patch_embedding.weight.dtype
        inputs = 1 + len(self._actions)
        *actions, start = tensors[:inputs]
        crossed = [each.to(dtype) for each in tensors[inputs : inputs + len(self.crossed)]]
        held = dict(zip(self.names, tensors[inputs + len(self.crossed) :], strict=True))
        window = CacheWindow(held, start)
        rows = [each.to(dtype) for each in actions]
        flow = net(
            noisy_input.to(dtype),
            timestep,
            cond_concat.to(dtype),
            _pairs(crossed),
            (rows[0] if len(rows) > 1 else None, rows[-1]),
            start[:, None] + torch.arange(BLOCK_FRAMES, device=start.device),
            window,
        )
        return (flow.float(), *(window.left[name] for name in self.names))

    @property
    def _actions(self) -> tuple[str, ...]:
        return (
            ("mouse_cond", "keyboard_cond") if self.network.config.action.enable_mouse else ("keyboard_cond",)
        )


class CrossAttention(nn.Module):
    """Keys and values of the first picture for every block of frames, computed once per world.

    Args:
        network: Network, of which only the necessary parts are kept.
    """

    def __init__(self, network: CausalWan) -> None:
        super().__init__()
        self.network = network.crossing()

    def forward(self, visual_context: Tensor) -> tuple[Tensor, ...]:
        """Compute the tensors of :func:`cross_names` from CLIP's features [batch, 257, 1280], float32."""
        given = visual_context.to(self.network.dtype)
        return tuple(each.float() for pair in self.network(given) for each in pair)


class Rebase(nn.Module):
    """Move of cached frames to earlier positions, which rotates their keys back by the difference in time.

    A rotation by one position's angle and back by another's is a rotation by the angle of the difference, so
    the attention scores do not change. Values have no position.

    Args:
        config: Configuration of the network.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.names = key_names(config)
        self.time_rotation, self.action_rotation = time_rotations(config)

    def forward(self, by: Tensor, *keys: Tensor) -> tuple[Tensor, ...]:
        """Move the keys to earlier positions.

        Args:
            by: Number of positions to move back, [batch], int64.
            *keys: Tensors of :func:`key_names`, [batch, held_frames, ...].

        Returns:
            Moved keys, each with the shape and dtype of its input.
        """
        angles = {kind: self.action_rotation(by) for kind in ("mouse", "keyboard")}
        angles["self"] = self.time_rotation(by)
        moved = []
        for name, each in zip(self.names, keys, strict=True):
            cos, sin = (
                angle.reshape(-1, *[1] * (each.ndim - 2), angle.shape[-1])
                for angle in angles[name.partition("_")[0]]
            )
            moved.append(rotate(each, cos, -sin))
        return tuple(moved)


def whole_flow(network: CausalWan, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the flow of all blocks at once, from the concatenated inputs of :class:`BlockDenoiser`.

    Args:
        network: Network of the blocks.
        inputs: Inputs by the block's names, without caches and `start`: frames of all blocks, at their
            timesteps; rows of actions from 12 frames before the first frame; the first picture's keys and
            values.

    Returns:
        Predicted flow, [batch, 16, frames, height / 8, width / 8].
    """
    latents = inputs["noisy_input"]
    frames, device = latents.shape[2], latents.device
    flow: Tensor = network(
        latents,
        inputs["timestep"],
        inputs["cond_concat"],
        _pairs([inputs[name] for name in cross_names(network.config)]),
        (inputs.get("mouse_cond"), inputs["keyboard_cond"]),
        torch.arange(frames, device=device)[None],
        BlockCausal(frames, network.config.local_attn_size, device),
    )
    return flow


def _pairs(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))
