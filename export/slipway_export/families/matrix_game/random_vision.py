"""Writer of random VAEs and CLIPs in the format of a Matrix-Game checkpoint's `.pth` files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModel

from slipway_export.checkpoint.renamed_weights import renamed_weights
from slipway_export.families.matrix_game import clip_vision
from slipway_export.families.wan_t2v.random_checkpoint import spread
from slipway_export.networks import wan_vae_file


def write_vae(
    path: Path,
    seed: int | None,
    *,
    base_dim: int = 8,
    num_res_blocks: int = 1,
    dim_mult: Sequence[int] = (1, 2, 4, 4),
    temperal_downsample: Sequence[bool] = (False, True, True),
) -> None:
    """Write a random VAE of Wan2.1.

    Args:
        path: Path of the file.
        seed: Seed of the weights; None writes a file without content.
        base_dim: Channels of the first layer; the public VAE has 96.
        num_res_blocks: Number of residual blocks at each size; the public VAE has 2.
        dim_mult: Channels at each size as multiples of `base_dim`.
        temperal_downsample: Flags for each size but the last: True if the frames are halved after it.
    """
    with _built(seed):
        vae = AutoencoderKLWan(
            base_dim=base_dim,
            num_res_blocks=num_res_blocks,
            dim_mult=list(dim_mult),
            temperal_downsample=list(temperal_downsample),
        )
        if seed is not None:
            spread(vae)
    _save(renamed_weights(vae, wan_vae_file.source_of(vae)), path, empty=seed is None)


def write_clip(
    path: Path,
    seed: int | None,
    *,
    channels: int = 2 * clip_vision.HEAD_WIDTH,
    blocks: int = 3,
    image_px: int = 28,
    patch_px: int = 14,
) -> None:
    """Write a random CLIP, with only a small part of the text model.

    Args:
        path: Path of the file.
        seed: Seed of the weights; None writes a file without content.
        channels: Number of channels, a multiple of the width of a head; the public CLIP has 1280.
        blocks: Number of blocks; the public CLIP has 32.
        image_px: Side of the square to which pictures are resized; 224 in the public CLIP.
        patch_px: Side of a patch; 14 in the public CLIP too.
    """
    config = CLIPVisionConfig(
        hidden_size=channels,
        intermediate_size=4 * channels,
        num_hidden_layers=blocks,
        num_attention_heads=channels // clip_vision.HEAD_WIDTH,
        image_size=image_px,
        patch_size=patch_px,
        hidden_act="gelu",
    )
    with _built(seed):
        vision = _strong(CLIPVisionModel(config))
        others = {
            "log_scale": torch.tensor(2.6593),
            "visual.head": torch.randn(channels, channels),
            "textual.token_embedding.weight": torch.randn(8, channels),
        }
    _save(others | renamed_weights(vision, clip_vision.source_of), path, empty=seed is None)


@contextlib.contextmanager
def _built(seed: int | None) -> Iterator[None]:
    """Build networks with random weights, or on device "meta" without a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed or 0)
        with torch.device("meta" if seed is None else "cpu"):
            yield


def _save(weights: Mapping[str, Tensor], path: Path, *, empty: bool) -> None:
    """Write a file of weights; in an empty one, each tensor stores a single number."""
    if empty:
        weights = {key: torch.zeros((), dtype=each.dtype).expand(each.shape) for key, each in weights.items()}
    torch.save(dict(weights), path)


def _strong(vision: CLIPVisionModel) -> CLIPVisionModel:
    """Randomize all weights, so that each affects the output; fresh norms are 1 and fresh biases 0."""
    with torch.no_grad():
        for parameter in vision.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
        nn.init.normal_(vision.embeddings.position_embedding.weight)
    return vision
