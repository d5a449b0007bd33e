"""The networks: pictures to latents and back, and a denoiser with a rolling window of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn
from torch.nn import functional

from slipway_toy.request import ACTIONS, BLOCK_FRAMES, PIXELS_PER_LATENT


class ToyVae(ModelMixin, ConfigMixin):
    """Pictures to latents of an eighth of their sides, and latents to frames."""

    @register_to_config
    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, channels, PIXELS_PER_LATENT, PIXELS_PER_LATENT)
        self.decoder = nn.ConvTranspose2d(channels, 3, PIXELS_PER_LATENT, PIXELS_PER_LATENT)


class ToyDenoiser(ModelMixin, ConfigMixin):
    """Predicts the flow of a block of frames, which attends to itself and to the window before it."""

    @register_to_config
    def __init__(self, channels: int = 4, dim: int = 16, window_frames: int = 6) -> None:
        super().__init__()
        self.embed = nn.Linear(2 * channels, dim)
        self.time = nn.Linear(1, dim)
        self.act = nn.Linear(ACTIONS, dim)
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.project = nn.Linear(dim, channels)


class Encode(nn.Module):
    """[1, 3, height, width] in [-1, 1] to [1, channels, height / 8, width / 8]."""

    def __init__(self, vae: ToyVae) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, image: Tensor) -> Tensor:
        return self.vae.encoder(image)


class Decode(nn.Module):
    """[1, channels, frames, height, width] to [1, 3, frames, 8 * height, 8 * width] in [-1, 1]."""

    def __init__(self, vae: ToyVae) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, latents: Tensor) -> Tensor:
        frames = self.vae.decoder(latents[0].transpose(0, 1))
        return torch.tanh(frames).transpose(0, 1)[None]


class Block(nn.Module):
    """One block of frames: latents, timestep, actions, the first picture's latents, where the block begins.

    `keys` and `values` are [1, window places before the block, dim]; the oldest of them are dropped for those
    of this block, whichever run of it wrote them last.
    """

    def __init__(self, network: ToyDenoiser) -> None:
        super().__init__()
        self.network = network

    def forward(
        self,
        latents: Tensor,
        timestep: Tensor,
        actions: Tensor,
        condition: Tensor,
        start: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.tokens(latents, timestep, actions, condition)
        all_keys, all_values = torch.cat([keys, k], dim=1), torch.cat([values, v], dim=1)
        places = latents.shape[3] * latents.shape[4]
        held = self.network.config.window_frames - BLOCK_FRAMES
        frame = torch.arange(self.network.config.window_frames)
        there = (frame >= held - start)[:, None].expand(-1, places).reshape(1, 1, 1, -1)
        sample = self.attend(q, all_keys, all_values, there, latents.shape)
        kept = BLOCK_FRAMES * places
        return sample, all_keys[:, kept:], all_values[:, kept:]

    def tokens(
        self, latents: Tensor, timestep: Tensor, actions: Tensor, condition: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, [1, frames * height * width, dim] each."""
        net, frames = self.network, latents.shape[2]
        seen = torch.cat([latents, condition[:, :, None].expand(-1, -1, frames, -1, -1)], dim=1)
        told = net.act(actions) + net.time(timestep[..., None] / 1000)
        x = net.embed(seen.movedim(1, -1)) + told[:, :, None, None]
        x = x.flatten(1, 3)
        return net.to_q(x), net.to_k(x), net.to_v(x)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, there: Tensor, shape: Any) -> Tensor:
        """Attend to the places that are there; return the flow in the shape of the latents."""
        mixed = functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], attn_mask=there)
        flow = self.network.project(functional.silu(q + mixed[:, 0]))
        return flow.reshape(shape[0], shape[2], shape[3], shape[4], -1).movedim(-1, 1)

    def whole(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Run all blocks at once: each sees itself and what of the window lies before it."""
        names = ("latents", "timestep", "actions", "condition")
        latents = inputs["latents"]
        q, k, v = self.tokens(*(inputs[name] for name in names))
        places = latents.shape[3] * latents.shape[4]
        frame = torch.arange(latents.shape[2]).repeat_interleave(places)
        end = (frame // BLOCK_FRAMES + 1) * BLOCK_FRAMES
        there = (frame[None] < end[:, None]) & (
            frame[None] >= end[:, None] - self.network.config.window_frames
        )
        return {"sample": self.attend(q, k, v, there[None, None], latents.shape)}
