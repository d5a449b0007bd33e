"""Image encoder of Matrix-Game 2.0: the vision model of a CLIP with XLM-RoBERTa, in transformers' network.

A picture in [-1, 1] of any size is resized, normalized and encoded; the result is the output of the
penultimate block. The checkpoint uses its authors' key names and has no configuration: everything except the
width of a head follows from its shapes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPVisionConfig, CLIPVisionModel

from slipway_export.checkpoint.renamed_weights import Source, load_renamed, shape_of
from slipway_export.checkpoint.torch_file import read_torch_file
from slipway_serving.protocol.errors import raise_all

IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)
"""CLIP's mean of the colours of pictures in [0, 1]."""
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
"""CLIP's standard deviation of the colours of pictures in [0, 1]."""
HEAD_WIDTH = 80
"""Width of a head in ViT-H/14, with 16 heads in 1280 channels; no shape in a checkpoint shows it."""
LEFT_OUT = ("textual.", "log_scale", "visual.head")
"""Prefixes of keys that the image encoder does not need: the text model and the comparison with texts."""

_PATCHES, _POSITIONS, _MLP = (
    "visual.patch_embedding.weight",
    "visual.pos_embedding",
    "visual.transformer.0.mlp.0.weight",
)
_BLOCK = re.compile(r"^visual\.transformer\.(\d+)\.")
_LAYER = re.compile(r"^encoder\.layers\.(\d+)\.(.+)\.(weight|bias)$")
# Sources of a block's weights, by transformers' names.
_BLOCK_SOURCES = {
    "layer_norm1": Source("norm1"),
    "self_attn.q_proj": Source("attn.to_qkv", 0, 3),
    "self_attn.k_proj": Source("attn.to_qkv", 1, 3),
    "self_attn.v_proj": Source("attn.to_qkv", 2, 3),
    "self_attn.out_proj": Source("attn.proj"),
    "layer_norm2": Source("norm2"),
    "mlp.fc1": Source("mlp.0"),
    "mlp.fc2": Source("mlp.2"),
}
_SOURCES = {
    "embeddings.class_embedding": Source("visual.cls_embedding", ones=2),
    "embeddings.patch_embedding.weight": Source(_PATCHES),
    "embeddings.position_embedding.weight": Source(_POSITIONS, ones=1),
    "pre_layrnorm.weight": Source("visual.pre_norm.weight"),
    "pre_layrnorm.bias": Source("visual.pre_norm.bias"),
    "post_layernorm.weight": Source("visual.post_norm.weight"),
    "post_layernorm.bias": Source("visual.post_norm.bias"),
}


class ImageEncoder(nn.Module):
    """CLIP's image encoder up to its penultimate block; the class token comes first in the output."""

    mean: Tensor
    std: Tensor

    def __init__(self, vision: CLIPVisionModel) -> None:
        super().__init__()
        self.vision, self.side_px = vision, vision.config.image_size
        # The output does not depend on the last block and the norm after it.
        del vision.encoder.layers[-1], vision.post_layernorm
        for name, values in (("mean", IMAGE_MEAN), ("std", IMAGE_STD)):
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        """Encode pictures.

        Args:
            image: Pictures of any size, [batch, 3, height, width] in [-1, 1], float32. They are resized by
                bicubic interpolation without antialiasing, as upstream does it.

        Returns:
            Hidden states, [batch, 1 + patches, channels], float32: 257 of 1280 for ViT-H/14.
        """
        side = (self.side_px, self.side_px)
        resized = functional.interpolate(image, size=side, mode="bicubic", align_corners=False)
        pixels = (resized * 0.5 + 0.5 - self.mean) / self.std
        hidden = self.vision.pre_layrnorm(self.vision.embeddings(pixels))
        states: Tensor = self.vision.encoder(inputs_embeds=hidden).last_hidden_state
        return states.float()


def vision_config(path: Path, where: str) -> CLIPVisionConfig:
    """Return the configuration that follows from the shapes in a file.

    Args:
        path: Path of the file; its weights are not read.
        where: Name of the file in error messages.

    Raises:
        InvalidRequest: The file is of another kind, or lacks keys from which the configuration follows.
    """
    return _config(read_torch_file(path, where, mapped=True), where)


def load_vision(path: Path, where: str) -> CLIPVisionModel:
    """Load the vision model of a file, in float32, in eval mode and without gradients.

    Args:
        path: Path of the file.
        where: Name of the file in error messages.

    Raises:
        InvalidRequest: The file is refused as in :func:`vision_config`, or keys are missing, unknown, of
            another shape or not finite. Keys that begin with a prefix in `LEFT_OUT` are ignored.
    """
    state = read_torch_file(path, where, mapped=True)
    with torch.device("meta"):
        vision = CLIPVisionModel(_config(state, where))
    load_renamed(vision, state, source_of, where, LEFT_OUT)
    positions = torch.arange(vision.embeddings.num_positions)
    # No file contains the positions, which are the only buffer of the network.
    vision.embeddings.position_ids = positions[None]
    return vision.eval().requires_grad_(False)


def source_of(key: str) -> Source:
    """Return the source, in the file of a CLIP, of a tensor of transformers' vision model."""
    if found := _LAYER.match(key):
        block, name, kind = found.groups()
        source = _BLOCK_SOURCES[name]
        return Source(f"visual.transformer.{block}.{source.key}.{kind}", source.piece, source.pieces)
    return _SOURCES[key]


def _config(state: Mapping[str, object], where: str) -> CLIPVisionConfig:
    """Return the configuration of a CLIP vision network, from the shapes of its weights."""
    width, _, patch_px, _ = shape_of(state, _PATCHES, 4, where)
    _, positions, _ = shape_of(state, _POSITIONS, 3, where)
    blocks = {found[1] for key in state if (found := _BLOCK.match(key))}
    patches = math.isqrt(positions - 1)
    problems = []
    if width % HEAD_WIDTH:
        problems.append(f"{_PATCHES} must have a multiple of {HEAD_WIDTH} channels, got {width}")
    if patches < 1 or patches**2 != positions - 1:
        problems.append(f"{_POSITIONS} must have one position and those of a square, got {positions}")
    if len(blocks) < 2:
        problems.append(f"visual.transformer must have at least 2 blocks, got {len(blocks)}")
    raise_all(where, problems)
    return CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=shape_of(state, _MLP, 2, where)[0],
        num_hidden_layers=len(blocks),
        num_attention_heads=width // HEAD_WIDTH,
        image_size=patches * patch_px,
        patch_size=patch_px,
        hidden_act="gelu",
        layer_norm_eps=1e-5,
    )
