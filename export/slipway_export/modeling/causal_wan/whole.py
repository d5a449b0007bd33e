"""The network over all frames of a video at once, with upstream's inputs and outputs.

Frames are denoised in blocks of three, whose frames see each other and those of the window before them.
Memory grows linearly with the frames. Where the last block is not full, its frames see those that there are;
upstream's see zeros beside them, which its kernels fill keys up with, so there alone the two differ.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from slipway_export.modeling.causal_wan.attention import Over
from slipway_export.modeling.causal_wan.config import BLOCK_FRAMES
from slipway_export.modeling.causal_wan.network import CausalWan

TRAIN_STEPS = 1000


class BlockCausal:
    """Attends from every frame to its block of frames and to the window before it.

    Each frame has the keys of its window beside it, rather than each block: the number of frames is an axis
    of the inputs, which a trace keeps free; that of blocks it would fix to more than one.

    Args:
        frames: of the video.
        window: frames that a block sees, its own included; -1 for all before.
        device: of the tensors.
    """

    def __init__(self, frames: int, window: int, device: torch.device) -> None:
        self.frames, self.window = frames, frames if window < 0 else window
        ends = (torch.arange(frames, device=device) // BLOCK_FRAMES + 1)[:, None] * BLOCK_FRAMES
        places = torch.arange(self.window, device=device)
        seen = places + (0 * ends if window < 0 else ends - window)
        self.there = (seen >= 0) & (seen < ends) & (seen < frames)
        self.keys = seen.clamp(0, frames - 1).flatten()

    def __call__(self, _: str, over: Over, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See :class:`Attend`."""
        batch = q.shape[0]
        there = self.there[None].expand(batch, -1, -1).flatten(0, 1)
        out = over(q.flatten(0, 1)[:, None], self._windows(k), self._windows(v), there)
        return torch.unflatten(out[:, 0], 0, (batch, self.frames))

    def _windows(self, x: Tensor) -> Tensor:
        """Return the frames of each frame's window, [batch * frames, window, ...]."""
        return torch.unflatten(x[:, self.keys], 1, (self.frames, self.window)).flatten(0, 1)


class Denoiser(nn.Module):
    """Noisy latents of a whole video to the predicted flow and the latents that it leads to.

    Args:
        network: whose actions they are.
        timestep_shift: of the noise schedule, as the inference YAML has it.
    """

    sigmas: Tensor

    def __init__(self, network: CausalWan, timestep_shift: float) -> None:
        super().__init__()
        self.network = network
        # Upstream's table, in its own precision: a timestep means the sigma nearest to it.
        even = torch.linspace(1, 0, TRAIN_STEPS + 1, device="cpu")[:-1]
        sigmas = timestep_shift * even / (1 + (timestep_shift - 1) * even)
        self.register_buffer("sigmas", sigmas, persistent=False)

    def forward(
        self,
        noisy_input: Tensor,
        timestep: Tensor,
        visual_context: Tensor,
        cond_concat: Tensor,
        *actions: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Predict flow and clean latents.

        Args:
            noisy_input: [batch, 16, frames, height / 8, width / 8], float32.
            timestep: [batch, frames], float32, 0 to 1000.
            visual_context: CLIP's features of the first picture, [batch, 257, 1280], float32.
            cond_concat: mask and latents of the first picture, [batch, 20, frames, height / 8, width / 8].
            *actions: `mouse_cond` [batch, 4 * frames - 3, 2] where the network has a mouse, and
                `keyboard_cond` [batch, 4 * frames - 3, keys], float32: a row for each frame of the video.

        Returns:
            `flow_pred` and `pred_x0`, shape and dtype of `noisy_input`.
        """
        net, dtype = self.network, self.network.patch_embedding.weight.dtype
        frames, device = noisy_input.shape[2], noisy_input.device
        rows = [self._rows(each.to(dtype), frames) for each in actions]
        flow = net(
            noisy_input.to(dtype),
            timestep,
            cond_concat.to(dtype),
            net.crossing()(visual_context.to(dtype)),
            (rows[0] if len(rows) > 1 else None, rows[-1]),
            torch.arange(frames, device=device)[None],
            BlockCausal(frames, net.config.local_attn_size, device),
        ).float()
        return flow, noisy_input - self._sigma(timestep)[:, None, :, None, None] * flow

    def _rows(self, actions: Tensor, frames: int) -> Tensor:
        """Begin the actions with the first row, as often as the first latent frame is told of."""
        action = self.network.config.action
        before = actions[:, :1].expand(-1, action.window_rows, -1)
        return torch.cat([before, actions], dim=1)[:, : action.rows(frames)]

    def _sigma(self, timestep: Tensor) -> Tensor:
        distance = (TRAIN_STEPS * self.sigmas - timestep[..., None]).abs()
        return self.sigmas[distance.argmin(dim=-1)]
