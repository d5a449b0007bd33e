"""The parts of Wan's networks that are Slipway's own."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel

from slipway_export.families.wan_t2v.network import decode, rotation
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rotation_by_pairs_equals_that_of_diffusers(dtype: torch.dtype) -> None:
    module = WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=24, in_channels=4, out_channels=4, text_dim=16,
        freq_dim=16, ffn_dim=32, num_layers=1,
    ).eval()  # fmt: skip
    attention = module.blocks[0].attn1.to(dtype)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 2 * 4 * 4, 48, generator=generator).to(dtype)
    tables = module.rope(torch.zeros(2, 4, 2, 8, 8))
    with torch.no_grad():
        expected = attention(hidden, None, None, tables)
        with rotation(module, fused=False):
            assert torch.equal(attention(hidden, None, None, tables), expected)
        assert torch.equal(attention(hidden, None, None, tables), expected)
