"""The VAE of HunyuanVideo as two networks for graphs, against diffusers' own."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo
from torch import Tensor

from slipway_export.families.framepack_i2v.family import TILES
from slipway_export.families.framepack_i2v.vae_networks import PictureEncoder, TileDecoder


@pytest.fixture
def vae() -> AutoencoderKLHunyuanVideo:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = AutoencoderKLHunyuanVideo(
            block_out_channels=(4, 8, 8, 16), norm_num_groups=4, layers_per_block=1
        )
        for weight in made.parameters():
            weight.data += 0.1 * torch.randn_like(weight)
        return made.eval().requires_grad_(False)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_encoder_gives_what_diffusers_samples_from(vae: AutoencoderKLHunyuanVideo) -> None:
    image = noise(2, 3, 1, 16, 24).clamp(-1, 1)
    found = vae.encode(image).latent_dist
    mode, deviation = PictureEncoder(vae)(image)
    factor = vae.config.scaling_factor
    torch.testing.assert_close(mode, found.mode() * factor, atol=1e-5, rtol=0)
    random = torch.Generator().manual_seed(3)
    sample = found.sample(generator=torch.Generator().manual_seed(3)) * factor
    torch.testing.assert_close(
        mode + deviation * torch.randn(mode.shape, generator=random), sample, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_decoder_equals_diffusers_when_a_tile_has_any_number_of_frames(
    vae: AutoencoderKLHunyuanVideo, frames: int
) -> None:
    latents = noise(2, 16, frames, 4, 6)
    whole = vae.decoder(vae.post_quant_conv(latents / vae.config.scaling_factor))
    assert whole.std() > 0.1
    torch.testing.assert_close(TileDecoder(vae)(latents), whole, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("frames", [9, 10, 18])
def test_tiles_of_the_facts_are_those_of_diffusers_decoding(
    vae: AutoencoderKLHunyuanVideo, frames: int
) -> None:
    latents = noise(1, 16, frames, 2, 2)
    decoder, kept = TileDecoder(vae), 4 * TILES.stride
    tiles = [decoder(latents[:, :, begin : begin + TILES.frames]) for begin in range(0, frames, TILES.stride)]
    joined = [tiles[0]] + [tile[:, :, 1:] for tile in tiles[1:]]
    for before, tile in pairwise(joined):
        count = min(TILES.blended, before.shape[2], tile.shape[2])
        share = (torch.arange(count) / count).view(1, 1, -1, 1, 1)
        last = before[:, :, before.shape[2] - count :]
        tile[:, :, :count] = last * (1 - share) + tile[:, :, :count] * share
    video = torch.cat([joined[0][:, :, : kept + 1], *(tile[:, :, :kept] for tile in joined[1:])], dim=2)
    expected = vae.decode(latents / vae.config.scaling_factor).sample
    torch.testing.assert_close(video[:, :, : 4 * frames - 3], expected, atol=1e-4, rtol=1e-5)
