"""The networks with the tensors that the graphs have: float32 at the edges, in every precision."""

from __future__ import annotations

from diffusers import AutoencoderKL, DiTTransformer2DModel
from torch import Tensor, nn


class Denoiser(nn.Module):
    """Predictor of the noise in latents; it leaves out the variance, which DDIM does not use."""

    def __init__(self, network: DiTTransformer2DModel) -> None:
        super().__init__()
        self.network = network

    def forward(self, latents: Tensor, timestep: Tensor, class_labels: Tensor) -> Tensor:
        """Return the noise, shape of the latents: [batch, 4, height / 8, width / 8]."""
        given = latents.to(self.network.dtype)
        found: Tensor = self.network(given, timestep=timestep[:, 0], class_labels=class_labels[:, 0]).sample
        return found[:, : latents.shape[1]].float()


class Decoder(nn.Module):
    """Decoder of latents to a picture, [1, 3, height, width], nominally in [-1, 1]."""

    def __init__(self, vae: AutoencoderKL) -> None:
        super().__init__()
        self.vae, self.scale = vae, 1 / vae.config.scaling_factor

    def forward(self, latents: Tensor) -> Tensor:
        """Decode the latents as the loop leaves them."""
        samples: Tensor = self.vae.decode((latents * self.scale).to(self.vae.dtype)).sample
        return samples.float()
