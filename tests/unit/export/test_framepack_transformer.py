"""FramePack's transformer without crops and loops, and masks as channels, against diffusers' own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from torch import Tensor

from slipway_export.families.framepack_i2v.network import Transformer, lowered_attention
from slipway_export.networks.attention_bias import without_keys, without_later

CONFIG: dict[str, Any] = {
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_layers": 1,
    "num_single_layers": 1,
    "num_refiner_layers": 1,
    "text_embed_dim": 12,
    "pooled_projection_dim": 10,
    "rope_axes_dim": (4, 6, 6),
    "has_image_proj": True,
    "image_proj_dim": 14,
    "has_clean_x_embedder": True,
}


@pytest.fixture(scope="module")
def own() -> HunyuanVideoFramepackTransformer3DModel:
    """diffusers' transformer, as it is."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return HunyuanVideoFramepackTransformer3DModel(**CONFIG).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def ours(own: HunyuanVideoFramepackTransformer3DModel) -> Transformer:
    copy = HunyuanVideoFramepackTransformer3DModel(**CONFIG).eval().requires_grad_(False)
    copy.load_state_dict(own.state_dict())
    return Transformer(copy)


def inputs(height: int, width: int, lengths: list[int], tokens: int, frames: int = 9) -> dict[str, Tensor]:
    """Return the inputs of a forward in the inverted order, with prompts of such lengths and padding."""
    random = torch.Generator().manual_seed(1)
    batch = len(lengths)

    def noise(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=random)

    def latents(count: int) -> Tensor:
        return noise(16, count, height, width)

    return {
        "hidden_states": latents(frames),
        "timestep": 1000 * torch.rand(batch, generator=random),
        "encoder_hidden_states": noise(tokens, 12),
        "encoder_attention_mask": (torch.arange(tokens) < torch.tensor(lengths)[:, None]).long(),
        "pooled_projections": noise(10),
        "image_embeds": noise(5, 14),
        "indices_latents": torch.arange(10, 10 + frames),
        "guidance": torch.full((batch,), 9000.0),
        "latents_clean": latents(2),
        "indices_latents_clean": torch.tensor([0, 10 + frames]),
        "latents_history_2x": latents(2),
        "indices_latents_history_2x": torch.arange(2) + 11 + frames,
        "latents_history_4x": latents(16),
        "indices_latents_history_4x": torch.arange(16) + 13 + frames,
    }


@pytest.mark.parametrize(
    ("height", "width", "lengths", "tokens"),
    [(4, 6, [7], 7), (6, 10, [3], 9), (2, 2, [1], 4), (4, 4, [8, 3], 8), (6, 4, [2, 5], 12)],
    ids=["whole prompt", "cropped prompt", "smallest", "two prompts", "two padded prompts"],
)
def test_transformer_equals_diffusers_when_prompts_are_cropped_or_masked(
    own: HunyuanVideoFramepackTransformer3DModel,
    ours: Transformer,
    height: int,
    width: int,
    lengths: list[int],
    tokens: int,
) -> None:
    given = inputs(height, width, lengths, tokens)
    expected = own(**given, return_dict=False)[0]
    assert expected.std() > 0.1
    torch.testing.assert_close(ours(**given), expected, atol=2e-6, rtol=0)


def test_padding_has_no_say_when_its_embeddings_change(ours: Transformer) -> None:
    given = inputs(4, 4, [3, 6], 8)
    other = given["encoder_hidden_states"].clone()
    other[0, 3:] += 5.0
    changed = ours(**{**given, "encoder_hidden_states": other})
    torch.testing.assert_close(changed, ours(**given), atol=2e-6, rtol=0)


def test_diffusers_refuses_the_meshgrid_of_indices_when_they_have_a_batch(
    own: HunyuanVideoFramepackTransformer3DModel,
) -> None:
    """The error that others took for a limit of ONNX: indices of two dimensions, in PyTorch alone."""
    given = inputs(4, 4, [3], 3)
    with pytest.raises(RuntimeError, match="meshgrid: Expected 0D or 1D tensor"):
        own(**{**given, "indices_latents": given["indices_latents"][None]})


def test_attention_is_diffusers_own_again_after_lowering(ours: Transformer) -> None:
    net: Any = ours.transformer
    blocks = (*net.transformer_blocks, *net.single_transformer_blocks)
    own = [block.attn.processor for block in blocks]
    with lowered_attention(ours):
        assert not {type(processor) for processor in own} & {type(b.attn.processor) for b in blocks}
    assert [block.attn.processor for block in blocks] == own


@pytest.fixture(params=[torch.float32, torch.float16, torch.bfloat16], ids=str)
def vectors(request: pytest.FixtureRequest) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values of 6 tokens."""
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 6, 3, 16, generator=random) for _ in range(3))
    yield query.to(request.param), key.to(request.param), value.to(request.param)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    turned = (x.transpose(1, 2) for x in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(*turned, attn_mask=mask, scale=0.25)


def test_channels_leave_keys_out_as_a_mask_does(vectors: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = vectors
    seen = torch.arange(6) < torch.tensor([[6], [2]])
    masked = attend(query, key, value, seen[:, None, None])
    torch.testing.assert_close(attend(*without_keys(query, key, seen), value), masked, atol=1e-2, rtol=1e-2)
    if query.dtype is torch.float32:
        torch.testing.assert_close(attend(*without_keys(query, key, seen), value), masked, atol=1e-6, rtol=0)


def test_channels_leave_later_frames_out_as_a_mask_does(vectors: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = vectors
    frame = torch.tensor([0, 0, 1, 1, 2, 2])
    masked = attend(query, key, value, frame[None] <= frame[:, None])
    torch.testing.assert_close(attend(*without_later(query, key, frame), value), masked, atol=1e-2, rtol=1e-2)
