"""Components of Matrix-Game 2.0 besides its network: the two encoders of the first picture, and the decoder.

They derive their sizes from two `.pth` files of a checkpoint, which have no configuration: the CLIP for the
visual context, and the VAE of Wan2.1, whose decoder is shared with the family `wan_t2v`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.keys import torch_dtype
from slipway_export.networks.wan_vae import PATCH, plane, video_decoder
from slipway_export.spec import Axis, Component, DType, Loading, Precision, Stepped, TensorSpec, Tolerance

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan
    from torch import nn

VAE_FILE = "Wan2.1_VAE.pth"
"""Upstream's file name of the VAE."""
CLIP_FILE = "models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth"
"""Upstream's file name of the CLIP."""

# Hidden states have no fixed scale, so the relative bounds decide and the absolute one is a safety net.
IMAGE_TOLERANCE = {
    Precision.FP32: Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.99999, row_cosine=0.9999),
    Precision.FP16: Tolerance(max_abs=0.2, relative_l2=2e-2, cosine=0.999, row_cosine=0.998),
    Precision.BF16: Tolerance(max_abs=1.0, relative_l2=5e-2, cosine=0.998, row_cosine=0.99),
}
ENCODER_TOLERANCE = {Precision.FP32: Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.99999)}


def image_encoder(checkpoint: Checkpoint, axes: Mapping[str, Axis]) -> Component:
    """Describe the graph that maps pictures to the network's visual context.

    It takes the same tensor as :func:`vae_encoder`; the graph includes resizing and CLIP's normalization.

    Args:
        checkpoint: Checkpoint with a `CLIP_FILE`, and the `VAE_FILE` that gives the size of pictures.
        axes: Axes by name, of which `batch`, `token_height` and `token_width` are used.

    Raises:
        InvalidRequest: The file is missing, or it is not of the expected kind.
    """
    from slipway_export.families.matrix_game.clip_vision import vision_config

    config = vision_config(checkpoint.file(CLIP_FILE), _where(checkpoint, CLIP_FILE))
    tokens = 1 + (config.image_size // config.patch_size) ** 2
    return Component(
        name="image_encoder",
        inputs=(_image(checkpoint, "batch"),),
        outputs=(TensorSpec("visual_context", DType.FLOAT32, ("batch", tokens, config.hidden_size)),),
        axes=tuple(axes[name] for name in ("batch", "token_height", "token_width")),
        load=partial(_load_image_encoder, checkpoint),
        tolerance=IMAGE_TOLERANCE,
        # The ONNX operator Resize has no antialiasing before opset 18.
        lowest_opset=dict.fromkeys(IMAGE_TOLERANCE, 18),
        rows=(1, 1),
    )


def vae_encoder(checkpoint: Checkpoint, axes: Mapping[str, Axis]) -> Component:
    """Describe the graph that maps the first picture to the latents of the video that begins with it.

    The last latent frame repeats for every later frame; a shorter video uses only the first latent frames.

    Args:
        checkpoint: Checkpoint with a `VAE_FILE`.
        axes: Axes by name, of which `token_height` and `token_width` are used.

    Raises:
        InvalidRequest: The file is missing, or it is not of the expected kind.
    """
    from slipway_export.networks.wan_vae_encoder import picture_latents

    config = _vae_config(checkpoint)
    latents = (1, config["z_dim"], picture_latents(config), *plane(PATCH))
    return Component(
        name="vae_encoder",
        inputs=(_image(checkpoint, 1),),
        outputs=(TensorSpec("latents", DType.FLOAT32, latents),),
        axes=(axes["token_height"], axes["token_width"]),
        load=partial(_load_vae_encoder, checkpoint),
        tolerance=ENCODER_TOLERANCE,
    )


def vae_decoder(checkpoint: Checkpoint, axes: Mapping[str, Axis]) -> tuple[Component, Component, Stepped]:
    """Describe the graphs that decode latents to video; see `video_decoder` for the result.

    Args:
        checkpoint: Checkpoint with a `VAE_FILE`.
        axes: Axes by name, of which `token_height` and `token_width` are used.

    Raises:
        InvalidRequest: The file is missing, or it is not of the expected kind.
    """
    return video_decoder(_vae_config(checkpoint), partial(_load_vae, checkpoint), axes)


def _where(checkpoint: Checkpoint, file: str) -> str:
    return f"{checkpoint.where(file)}: {file}"


def _image(checkpoint: Checkpoint, batch: int | str) -> TensorSpec:
    sides = plane(PATCH * _vae_config(checkpoint)["scale_factor_spatial"])
    return TensorSpec("image", DType.FLOAT32, (batch, 3, *sides))


def _vae_config(checkpoint: Checkpoint) -> dict[str, Any]:
    from slipway_export.networks.wan_vae_file import vae_config

    return vae_config(checkpoint.file(VAE_FILE), _where(checkpoint, VAE_FILE))


def _load_vae(checkpoint: Checkpoint, _loading: Loading) -> AutoencoderKLWan:
    from slipway_export.networks.wan_vae_file import load_vae

    return load_vae(checkpoint.file(VAE_FILE), _where(checkpoint, VAE_FILE))


def _load_vae_encoder(checkpoint: Checkpoint, _: Precision, loading: Loading) -> nn.Module:
    from slipway_export.networks.wan_vae_encoder import PictureEncoder

    return PictureEncoder(_load_vae(checkpoint, loading))


def _load_image_encoder(checkpoint: Checkpoint, precision: Precision, _loading: Loading) -> nn.Module:
    from slipway_export.families.matrix_game.clip_vision import ImageEncoder, load_vision

    vision = load_vision(checkpoint.file(CLIP_FILE), _where(checkpoint, CLIP_FILE))
    return ImageEncoder(vision.to(torch_dtype(precision)))
