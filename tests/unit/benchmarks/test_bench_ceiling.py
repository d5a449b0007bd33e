"""The ceiling of the float32 benchmark: its products are those that PyTorch counts."""

from __future__ import annotations

import torch
from diffusers import WanTransformer3DModel
from torch.utils.flop_counter import FlopCounterMode

from slipway_benchmarks.denoiser.cases import LATENT_CHANNELS, choose_case
from slipway_benchmarks.denoiser.ceiling import ProductRate, product_gflop

CASE = choose_case(
    "wan-6x8x64", {"layers": 2, "heads": 4, "ffn_dim": 512, "height": 64, "width": 96, "frames": 9}
)


def test_products_are_those_that_torch_counts_but_for_the_embeddings() -> None:
    network = WanTransformer3DModel(
        num_attention_heads=CASE.heads, attention_head_dim=CASE.head_dim, num_layers=CASE.layers,
        ffn_dim=CASE.ffn_dim, text_dim=CASE.text_dim, freq_dim=CASE.freq_dim, in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS, patch_size=(1, 2, 2),
    )  # fmt: skip
    text = torch.zeros(CASE.batch, CASE.text_tokens, CASE.text_dim)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(CASE.latents), torch.zeros(CASE.batch), text)
    counted = counter.get_total_flops() / 1e9
    assert 0.93 * counted < product_gflop(CASE) < counted


def test_rate_is_that_of_a_product_that_ran() -> None:
    assert ProductRate(threads=1).gflop_per_s() > 0
