"""CLIP's image encoder of Wan2.1's image-to-video checkpoints, and the preparation of pictures for it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.spec import Axis, Component, DType, Loading, Precision, TensorSpec, Tolerance

if TYPE_CHECKING:
    from torch import nn
    from transformers import CLIPVisionConfig

CONFIG_FILE = "image_encoder/config.json"
PROCESSOR_FILE = "image_processor/preprocessor_config.json"
_PROJECTION = "visual_projection.weight"

# Hidden states have no fixed scale, so the relative bounds decide and the absolute one is a safety net.
TOLERANCE = {
    Precision.FP32: Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.99999, row_cosine=0.9999),
    Precision.FP16: Tolerance(max_abs=0.2, relative_l2=2e-2, cosine=0.999, row_cosine=0.998),
    Precision.BF16: Tolerance(max_abs=1.0, relative_l2=5e-2, cosine=0.998, row_cosine=0.99),
}


def image_encoder(checkpoint: Checkpoint, pictures: int) -> Component:
    """Describe the graph that maps prepared pictures to the hidden states of CLIP's penultimate block.

    Args:
        checkpoint: Checkpoint with a part `image_encoder`.
        pictures: Number of pictures of a request, a row each.
    """
    side = _config(checkpoint).image_size
    tokens, width = embedding_shape(checkpoint)
    return Component(
        name="image_encoder",
        inputs=(TensorSpec("pixel_values", DType.FLOAT32, ("batch", 3, side, side)),),
        outputs=(TensorSpec("hidden_states", DType.FLOAT32, ("batch", tokens, width)),),
        axes=(Axis("batch", 1, pictures, 2),),
        load=partial(_load, checkpoint),
        tolerance=TOLERANCE,
        rows=(pictures, pictures),
    )


def embedding_shape(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the tokens and the width of a picture's embedding: 257 and 1280 for ViT-H/14."""
    config = _config(checkpoint)
    return 1 + (config.image_size // config.patch_size) ** 2, config.hidden_size


def preparation(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return how pictures are prepared, as entries of :class:`slipway_serving.video.pictures.Preparation`."""
    config = checkpoint.config(PROCESSOR_FILE)
    return {
        "edge_px": config["size"]["shortest_edge"],
        "side_px": config["crop_size"]["height"],
        "mean": list(config["image_mean"]),
        "std": list(config["image_std"]),
        "resample": config["resample"],
    }


def _config(checkpoint: Checkpoint) -> CLIPVisionConfig:
    from transformers import CLIPVisionConfig

    return CLIPVisionConfig.from_dict(checkpoint.config(CONFIG_FILE))


def _load(checkpoint: Checkpoint, precision: Precision, loading: Loading) -> nn.Module:
    from transformers import CLIPVisionModel, CLIPVisionModelWithProjection

    from slipway_export.families.wan_t2v.network import ClipImage

    network, prefix = CLIPVisionModel, "vision_model."
    # Some public checkpoints store CLIP's projection too, which the denoiser does not need.
    if not checkpoint.configurations_only and _PROJECTION in checkpoint.weight_shapes("image_encoder"):
        network, prefix = CLIPVisionModelWithProjection, ""
    clip = checkpoint.load(
        "image_encoder", network, precision, loading, lambda: network(_config(checkpoint)), prefix
    )
    return ClipImage(clip if network is CLIPVisionModel else clip.vision_model)
