"""The network on one block of frames, with the keys and values of the frames before it as tensors.

A block sees itself and `local_attn_size - 3` frames before it, so what a block leaves for the next is the
keys and values of its own last frames: `next_X` is the `X` of the following block. The caller runs a block as
often as it has steps with the same `X`, drops what these give, and keeps the `next_X` of the last run, of
clean latents at timestep 0. Nothing is shifted, and where a window holds a whole block (6 frames) what is
carried on is just what the block wrote. Before the first block `X` is zeros, of which `start` says that they
are no frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from slipway_export.modeling.causal_wan.attention import Over, rotate
from slipway_export.modeling.causal_wan.config import BLOCK_FRAMES, Config
from slipway_export.modeling.causal_wan.network import CausalWan, time_rotations
from slipway_export.modeling.causal_wan.whole import BlockCausal


def cross_names(config: Config) -> list[str]:
    """Return the names of the keys and values of the first picture, block by block of the network."""
    return [f"cross_{kind}_{index:02}" for index in range(config.num_layers) for kind in ("keys", "values")]


def cache_names(config: Config) -> list[str]:
    """Return the names of the caches, in the order in which the network takes and gives them."""
    attentions = [f"self_{index:02}" for index in range(config.num_layers)]
    for kind in ("mouse",) * config.action.enable_mouse + ("keyboard",):
        attentions += [f"{kind}_{index:02}" for index in sorted(config.action.blocks)]
    return [
        f"{kind}_{part}_{index}"
        for kind, _, index in (name.partition("_") for name in attentions)
        for part in ("keys", "values")
    ]


def key_names(config: Config) -> list[str]:
    """Return the names of the caches that are keys, in the order of :func:`cache_names`."""
    return [name for name in cache_names(config) if name.split("_")[1] == "keys"]


class Window:
    """Attends from one block of frames to itself and to the frames that were kept.

    Args:
        held: keys and values of the frames before, [batch, held_frames, ...] each, by name of the cache.
        start: place of the block in the world, [batch], int64.
    """

    def __init__(self, held: dict[str, Tensor], start: Tensor) -> None:
        self.held, self.start = held, start
        self.left: dict[str, Tensor] = {}

    def __call__(self, name: str, over: Over, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See :class:`Attend`; notes what the block leaves."""
        kind, _, index = name.partition("_")
        keys, values = (
            self._joined(f"{kind}_{part}_{index}", new) for part, new in (("keys", k), ("values", v))
        )
        # A kept frame lies so far before the block; before the world's first there is none.
        before = torch.arange(keys.shape[1] - BLOCK_FRAMES, -BLOCK_FRAMES, -1, device=q.device)
        return over(q, keys, values, self.start[:, None] >= before)

    def _joined(self, name: str, new: Tensor) -> Tensor:
        held = self.held[name]
        joined = torch.cat([held.to(new.dtype), new], dim=1)
        count = held.shape[1]
        # Of a window up to two blocks the new frames alone: a copy of nothing else.
        last = new[:, BLOCK_FRAMES - count :] if count <= BLOCK_FRAMES else joined[:, BLOCK_FRAMES:]
        self.left[name] = last.float()
        return joined


class BlockDenoiser(nn.Module):
    """One block of three latent frames.

    Args:
        network: with a window (`local_attn_size` above 3).

    Raises:
        InvalidRequest: it has none.
    """

    def __init__(self, network: CausalWan) -> None:
        super().__init__()
        self.network = network
        self.names, self.crossed = cache_names(network.config), cross_names(network.config)
        self.held_frames = network.config.held_frames

    def forward(
        self, noisy_input: Tensor, timestep: Tensor, cond_concat: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Predict the flow of a block, and what it leaves for the next.

        Args:
            noisy_input: [batch, 16, 3, height / 8, width / 8], float32.
            timestep: [batch, 3], float32, 0 to 1000.
            cond_concat: [batch, 20, 3, height / 8, width / 8], float32.
            *tensors: `mouse_cond` [batch, 20, 2] where the network has a mouse; `keyboard_cond` [batch, 20,
                keys]; `start` [batch], int64; the tensors of :func:`cross_names`, [batch, 257, heads, size];
                those of :func:`cache_names`: of self-attention and mouse [batch, held_frames, tokens, heads,
                size], of the keyboard [batch, held_frames, heads, size]. Actions are the rows from 12 frames
                before frame ``4 * start`` of the video to 7 after it; what lies before the first frame has
                that frame's row. `start` is the place of the block's first latent frame in the world.

        Returns:
            `flow_pred`, shape of `noisy_input`; then `next_X`, of the shape of X, for each X of
            :func:`cache_names`.
        """
        net, dtype = self.network, self.network.patch_embedding.weight.dtype
        inputs = 1 + len(self._actions)
        *actions, start = tensors[:inputs]
        crossed = [each.to(dtype) for each in tensors[inputs : inputs + len(self.crossed)]]
        held = dict(zip(self.names, tensors[inputs + len(self.crossed) :], strict=True))
        window = Window(held, start)
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
    """What every block of frames sees of the first picture: made once for a world.

    Args:
        network: of which it keeps what it needs.
    """

    def __init__(self, network: CausalWan) -> None:
        super().__init__()
        self.network = network.crossing()

    def forward(self, visual_context: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of :func:`cross_names` for CLIP's features [batch, 257, 1280], float32."""
        given = visual_context.to(self.network.dtype)
        return tuple(each.float() for pair in self.network(given) for each in pair)


class Rebase(nn.Module):
    """Moves kept frames to earlier places: their keys are turned back by the angles of time between.

    Turning by the angle of a place and then back by that of another is turning by that of their difference,
    so what queries meet is the same. Values have no place.

    Args:
        config: of the network.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.names = key_names(config)
        self.time_rotation, self.action_rotation = time_rotations(config)

    def forward(self, by: Tensor, *keys: Tensor) -> tuple[Tensor, ...]:
        """Move.

        Args:
            by: [batch], int64: how many places earlier.
            *keys: the tensors of :func:`key_names`, [batch, held_frames, ...].

        Returns:
            Shape and dtype of each of the keys.
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
    """Return the flow of all blocks at once, from what :class:`BlockDenoiser` is given of them, joined.

    Args:
        network: theirs.
        inputs: by the block's names, but for caches and `start`: frames of all blocks, at their timesteps;
            rows of actions from 12 frames before the first frame; the first picture's keys and values.

    Returns:
        [batch, 16, frames, height / 8, width / 8].
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
