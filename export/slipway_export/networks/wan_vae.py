"""Components of a Wan VAE, for every family that uses its latents: the video decoder and the picture encoder.

The decoder has two graphs: one decodes the first latent frame, the other decodes each later frame with the
caches that the previous frame left. The export verifies a run of both against diffusers' own loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slipway_export.spec import (
    Axis,
    Component,
    DType,
    Loading,
    Precision,
    StepInput,
    Stepped,
    TensorSpec,
    Tolerance,
)

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan
    from torch import Tensor

PATCH = 2
"""Latents per token, along height and width."""
ENCODER_TOLERANCE = {Precision.FP32: Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.99999)}
DECODER_TOLERANCE = {Precision.FP32: Tolerance(max_abs=5e-3, relative_l2=1e-4, cosine=0.99999)}


def video_decoder(
    config: Mapping[str, Any], load: Callable[[Loading], AutoencoderKLWan], axes: Mapping[str, Axis]
) -> tuple[Component, Component, Stepped]:
    """Describe the decoder of a VAE.

    Args:
        config: Configuration of :class:`AutoencoderKLWan`.
        load: Function that loads the VAE in float32.
        axes: Axes by name, of which `token_height` and `token_width` are used, with two latents per token.

    Returns:
        Graph of the first latent frame, graph of each later frame, and their verified run.
    """
    from slipway_export.families.wan_t2v.network import (
        FirstDecoderStep,
        NextDecoderStep,
        decode,
        decoder_caches,
    )

    caches = decoder_caches(dict(config))

    def carried(prefix: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                f"{prefix}cache_{i:02}", DType.FLOAT32, (1, cache.channels, 2, *plane(PATCH * cache.scale))
            )
            for i, cache in enumerate(caches)
        )

    latents = TensorSpec("latents", DType.FLOAT32, (1, config["z_dim"], 1, *plane(PATCH)))
    scale = PATCH * config.get("scale_factor_spatial", 8)
    temporal = config.get("scale_factor_temporal", 4)

    def component(graph: str, network: Any, frames: int, inputs: tuple[TensorSpec, ...]) -> Component:
        return Component(
            name="vae_decoder",
            graph=graph,
            inputs=(latents, *inputs),
            outputs=(TensorSpec("sample", DType.FLOAT32, (1, 3, frames, *plane(scale))), *carried("next_")),
            axes=(axes["token_height"], axes["token_width"]),
            load=lambda _, loading: network(load(loading), caches, first=graph == "first"),
            tolerance=DECODER_TOLERANCE,
        )

    first = component("first", FirstDecoderStep, 1, ())
    following = component("next", NextDecoderStep, temporal, carried(""))

    def reference(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        latents = inputs["latents"]
        return {"sample": decode(load(Loading.READ).to(latents.device), latents)}

    stepped = Stepped(
        following, {"latents": StepInput(axis=2)}, {"sample": 2}, steps=4, reference=reference, first=first
    )
    return first, following, stepped


def picture_encoder(
    config: Mapping[str, Any],
    load: Callable[[Loading], AutoencoderKLWan],
    axes: Mapping[str, Axis],
    *,
    whole_video: bool,
    last_picture: bool = False,
) -> Component:
    """Describe the encoder of a video's first picture, or of its first and its last.

    Args:
        config: Configuration of :class:`AutoencoderKLWan`.
        load: Function that loads the VAE in float32.
        axes: Axes by name, of which `token_height` and `token_width` are used, with two latents per token,
            and the range of `latent_frames` if there is a last picture.
        whole_video: True to encode the picture with frames of zeros after it, so that the last latent frame
            repeats for every later one; False to encode the picture alone.
        last_picture: True to encode a last picture after the frames of zeros, too.
    """
    from slipway_export.networks.wan_vae_encoder import (
        FrameEncoder,
        PictureEncoder,
        PicturesEncoder,
        picture_latents,
    )

    image = TensorSpec("image", DType.FLOAT32, (1, 3, *plane(PATCH * config.get("scale_factor_spatial", 8))))
    frames = picture_latents(dict(config)) if whole_video else 1
    latents = TensorSpec("latents", DType.FLOAT32, (1, config["z_dim"], frames, *plane(PATCH)))
    inputs: tuple[TensorSpec, ...] = (image,)
    outputs: tuple[TensorSpec, ...] = (latents,)
    network = PictureEncoder if whole_video else FrameEncoder
    if last_picture:
        longest = max(2, axes["latent_frames"].max)
        count = TensorSpec("latent_frames", DType.INT64, (1,), values=(2, longest + 1))
        last = TensorSpec("last_latents", DType.FLOAT32, (1, config["z_dim"], 1, *plane(PATCH)))
        inputs, outputs = (image, replace(image, name="last_image"), count), (latents, last)
        network = PicturesEncoder
    return Component(
        name="vae_encoder",
        inputs=inputs,
        outputs=outputs,
        axes=(axes["token_height"], axes["token_width"]),
        load=lambda _, loading: network(load(loading)),
        tolerance=ENCODER_TOLERANCE,
    )


def plane(scale: int) -> tuple[str, str]:
    """Return height and width of a tensor that has `scale` places per token along each side."""
    return f"{scale} * token_height", f"{scale} * token_width"
