"""The network over all frames of a video at once, with upstream's inputs and outputs.

Frames are denoised in blocks of three; the frames of a block attend to each other and to those of the window
before them. Memory grows linearly with the frames. The result differs from upstream's only if the last block
is not full: here its frames attend only to existing frames, while upstream's kernels pad the keys with zeros,
to which its frames attend too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from slipway_export.families.matrix_game.causal_wan.attention import Over
from slipway_export.families.matrix_game.causal_wan.config import BLOCK_FRAMES
from slipway_export.families.matrix_game.causal_wan.network import CausalWan

TRAIN_STEPS = 1000


class BlockCausal:
    """Attention from every frame to its block of frames and to the window before it.

    The keys of a window are gathered for each frame and not for each block: a trace keeps the number of
    frames dynamic, since it is an axis of the inputs, but would fix the number of blocks to more than one.

    Args:
        frames: Number of frames of the video.
        window: Number of frames that a block attends to, its own included; -1 for all earlier frames.
        device: Device of the tensors.
    """

    def __init__(self, frames: int, window: int, device: torch.device) -> None:
        self.frames, self.window = frames, frames if window < 0 else window
        ends = (torch.arange(frames, device=device) // BLOCK_FRAMES + 1)[:, None] * BLOCK_FRAMES
        places = torch.arange(self.window, device=device)
        seen = places + (0 * ends if window < 0 else ends - window)
        self.there = (seen >= 0) & (seen < ends) & (seen < frames)
        self.keys = seen.clamp(0, frames - 1).flatten()

    def __call__(self, _: str, over: Over, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend as :class:`Attend` describes."""
        batch = q.shape[0]
        there = self.there[None].expand(batch, -1, -1).flatten(0, 1)
        out = over(q.flatten(0, 1)[:, None], self._windows(k), self._windows(v), there)
        return torch.unflatten(out[:, 0], 0, (batch, self.frames))

    def _windows(self, x: Tensor) -> Tensor:
        """Return the frames in the window of each frame, [batch * frames, window, ...]."""
        return torch.unflatten(x[:, self.keys], 1, (self.frames, self.window)).flatten(0, 1)


class Denoiser(nn.Module):
    """Denoiser of a whole video, which predicts the flow and the clean latents.

    Args:
        network: Network that predicts the flow.
        timestep_shift: Shift of the noise schedule, from the inference YAML.
    """

    sigmas: Tensor

    def __init__(self, network: CausalWan, timestep_shift: float) -> None:
        super().__init__()
        self.network = network
        # The table has upstream's precision, since each timestep maps to the sigma nearest to it.
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
            noisy_input: Noisy latents, [batch, 16, frames, height / 8, width / 8], float32.
            timestep: Timesteps of the frames, [batch, frames], float32, 0 to 1000.
            visual_context: Features of the first picture from CLIP, [batch, 257, 1280], float32.
            cond_concat: Mask and latents of the first picture, [batch, 20, frames, height / 8, width / 8].
            *actions: Rows for each frame of the video, float32: `mouse_cond` [batch, 4 * frames - 3, 2] if
                the network has a mouse, and `keyboard_cond` [batch, 4 * frames - 3, keys].

        Returns:
            `flow_pred` and `pred_x0`, same shape and dtype as `noisy_input`.
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
        """Prepend copies of the first row, so that the first latent frame has a full window."""
        action = self.network.config.action
        before = actions[:, :1].expand(-1, action.window_rows, -1)
        return torch.cat([before, actions], dim=1)[:, : action.rows(frames)]

    def _sigma(self, timestep: Tensor) -> Tensor:
        distance = (TRAIN_STEPS * self.sigmas - timestep[..., None]).abs()
        return self.sigmas[distance.argmin(dim=-1)]
