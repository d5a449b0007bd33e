"""Encoders of a picture with zeros after it, and of two with zeros between, against diffusers' encoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from slipway_export.families.matrix_game.random_vision import write_vae
from slipway_export.networks.wan_vae_encoder import PictureEncoder, PicturesEncoder, picture_latents
from slipway_export.networks.wan_vae_file import load_vae


@pytest.fixture(scope="module")
def vae(tmp_path_factory: pytest.TempPathFactory) -> AutoencoderKLWan:
    path: Path = tmp_path_factory.mktemp("vae") / "vae.pth"
    write_vae(path, seed=2)
    return load_vae(path, "vae").double()


@pytest.fixture(scope="module")
def image() -> Tensor:
    return torch.rand(1, 3, 16, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1


@pytest.fixture(scope="module")
def of_whole_video(vae: AutoencoderKLWan, image: Tensor) -> Tensor:
    """Latents of a video of 25 latent frames, by diffusers' loop over its chunks."""
    return encoded(vae, torch.cat([image[:, :, None], image.new_zeros(1, 3, 4 * 24, 16, 24)], dim=2))


def encoded(vae: AutoencoderKLWan, video: Tensor) -> Tensor:
    mean = vae.encode(video).latent_dist.mean
    shift, scale = (
        torch.tensor(each).view(1, -1, 1, 1, 1) for each in (vae.config.latents_mean, vae.config.latents_std)
    )
    return (mean - shift) / scale


def test_picture_encoder_equals_the_whole_video_when_its_last_latent_is_repeated(
    vae: AutoencoderKLWan, image: Tensor, of_whole_video: Tensor
) -> None:
    latents = PictureEncoder(vae)(image)
    assert latents.shape == (1, 16, 22, 2, 3)
    longer = torch.cat([latents, latents[:, :, -1:].expand(-1, -1, 3, -1, -1)], dim=2)
    torch.testing.assert_close(longer, of_whole_video, atol=1e-6, rtol=0)


def test_picture_encoder_gives_no_latent_twice_when_the_video_still_changes(of_whole_video: Tensor) -> None:
    changes = of_whole_video.diff(dim=2).abs().amax(dim=(0, 1, 3, 4))
    assert bool((changes[:21] > 0).all())
    assert float(changes[21:].max()) < 1e-12 < float(changes[20])


@pytest.mark.parametrize("latent_frames", [2, 3, 4, 9, 25])
def test_pictures_encoder_equals_the_whole_video_when_its_last_frame_is_a_picture(
    vae: AutoencoderKLWan, image: Tensor, latent_frames: int
) -> None:
    last = image.flip(-1)
    between = image.new_zeros(1, 3, 4 * (latent_frames - 1) - 1, 16, 24)
    expected = encoded(vae, torch.cat([image[:, :, None], between, last[:, :, None]], dim=2))
    first, of_last = PicturesEncoder(vae)(image, last, torch.tensor([latent_frames]))
    known = first[:, :, : latent_frames - 1]
    torch.testing.assert_close(known, expected[:, :, : known.shape[2]], atol=1e-6, rtol=0)
    torch.testing.assert_close(of_last, expected[:, :, -1:], atol=1e-6, rtol=0)
    without = PictureEncoder(vae)(image)
    assert torch.equal(without, first)
    assert float((of_last - without[:, :, :latent_frames][:, :, -1:]).abs().max()) > 1e-4


@pytest.mark.parametrize(("blocks", "latents"), [(1, 22), (2, 30)])
def test_picture_latents_are_as_many_as_change_when_counted(blocks: int, latents: int) -> None:
    assert picture_latents({"base_dim": 8, "num_res_blocks": blocks}) == latents
