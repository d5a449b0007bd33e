"""The parts of Wan's networks that are Slipway's own."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan

from slipway_export.families.wan_t2v.network import decode
from slipway_export.families.wan_t2v.presets import TINY


def test_video_is_decoded_on_the_device_of_the_latents() -> None:
    # Tensors on "meta" refuse those on the CPU, as tensors on a GPU do.
    with torch.device("meta"):
        vae = AutoencoderKLWan.from_config(TINY.configs["vae/config.json"])
    latents = torch.empty(1, 16, 2, 4, 4, device="meta")
    with torch.no_grad():
        pixels = decode(vae, latents)
    assert pixels.device.type == "meta"
    assert pixels.shape == (1, 3, 5, 32, 32)
