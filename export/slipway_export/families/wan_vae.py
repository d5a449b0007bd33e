"""The video decoder of a Wan VAE as components, for every family whose latents it decodes.

Two graphs, the first latent frame and each later one with the caches that the one before left, and the run of
them that is verified against diffusers' own loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from slipway_export.spec import (
    Axis,
    Component,
    DType,
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
"""Latents of a token, in height and width."""
DECODER_TOLERANCE = {Precision.FP32: Tolerance(max_abs=5e-3, relative_l2=1e-4, cosine=0.99999)}


def video_decoder(
    config: Mapping[str, Any], load: Callable[[], AutoencoderKLWan], axes: Mapping[str, Axis]
) -> tuple[Component, Component, Stepped]:
    """Describe the decoder of a VAE.

    Args:
        config: of :class:`AutoencoderKLWan`.
        load: gives the VAE, in float32.
        axes: by name; of them `token_height` and `token_width` are used, of two latents each.

    Returns:
        The graph of the first latent frame, that of each later one, and their run.
    """
    from slipway_export.modeling.wan import FirstDecoderStep, NextDecoderStep, decode, decoder_caches

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
            load=lambda _: network(load(), caches, first=graph == "first"),
            tolerance=DECODER_TOLERANCE,
        )

    first = component("first", FirstDecoderStep, 1, ())
    following = component("next", NextDecoderStep, temporal, carried(""))

    def reference(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        latents = inputs["latents"]
        return {"sample": decode(load().to(latents.device), latents)}

    stepped = Stepped(
        following, {"latents": StepInput(axis=2)}, {"sample": 2}, steps=4, reference=reference, first=first
    )
    return first, following, stepped


def plane(scale: int) -> tuple[str, str]:
    """Return height and width of what has `scale` places for each token."""
    return f"{scale} * token_height", f"{scale} * token_width"
