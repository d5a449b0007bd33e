"""Networks that are recognized by the keys of a file, whatever layout the file has.

:func:`recognize` finds the network, the layout's table of names and the prefix of the keys.
:func:`translated` then gives the tensors the names of diffusers or transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slipway_export.checkpoint.layouts.configs import (
    transformer_config,
    umt5_config,
    vae_config,
    vae_names,
)
from slipway_export.checkpoint.layouts.names import GGUF_UMT5, WAN_TRANSFORMER, WAN_UMT5
from slipway_export.checkpoint.layouts.scales import with_scales
from slipway_export.checkpoint.stored_weights import StoredTensor
from slipway_serving.protocol.errors import InvalidRequest

Translate = Callable[[str], "str | None"]
Shapes = Mapping[str, tuple[int, ...]]

LIBRARY = "diffusers' names"
# Tensors beside the weights: ComfyUI's tokenizer in the file of a text encoder.
_BESIDE = ("spiece_model",)
_PREFIXES = {
    "transformer": ("", "model.diffusion_model.", "diffusion_model."),
    "text_encoder": ("", "text_encoders.umt5xxl.transformer."),
    "vae": ("", "vae."),
}


@dataclass(frozen=True)
class Layout:
    """A network in a layout of its keys.

    Args:
        network: Class of the network in diffusers or transformers.
        part: Name of a part that is made of it; further ones have a number (``transformer_2``).
        names: Name of the layout, for messages.
        marks: Keys that only such files have all of.
        translate: Function that makes the function from the file's keys to the library's; it is given the
            shapes by the file's keys.
        config: Function that returns the configuration, given the shapes by the library's keys (by the file's
            for a VAE), the name of the file, and the configuration that is known otherwise.
    """

    network: str
    part: str
    names: str
    marks: tuple[str, ...]
    translate: Callable[[Shapes], Translate]
    config: Callable[[Shapes, str, Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Recognized:
    """Recognition of a file's content.

    Args:
        layout: Network and layout.
        prefix: Prefix of the keys.
    """

    layout: Layout
    prefix: str

    @property
    def summary(self) -> str:
        """What the file is, for people."""
        return f"{self.layout.network} under {self.layout.names}"


def _same(shapes: Shapes) -> Translate:
    return lambda key: key


LAYOUTS = (
    Layout(
        "WanTransformer3DModel",
        "transformer",
        WAN_TRANSFORMER.layout,
        ("patch_embedding.weight", "time_embedding.0.weight", "blocks.0.self_attn.q.weight"),
        lambda _: WAN_TRANSFORMER.to_library,
        transformer_config,
    ),
    Layout(
        "WanTransformer3DModel",
        "transformer",
        LIBRARY,
        ("patch_embedding.weight", "condition_embedder.time_proj.weight", "blocks.0.attn1.to_q.weight"),
        _same,
        transformer_config,
    ),
    Layout(
        "UMT5EncoderModel",
        "text_encoder",
        WAN_UMT5.layout,
        ("token_embedding.weight", "blocks.0.attn.q.weight", "blocks.0.pos_embedding.embedding.weight"),
        lambda _: WAN_UMT5.to_library,
        umt5_config,
    ),
    Layout(
        "UMT5EncoderModel",
        "text_encoder",
        GGUF_UMT5.layout,
        ("token_embd.weight", "enc.blk.0.attn_q.weight", "enc.blk.1.attn_rel_b.weight"),
        lambda _: GGUF_UMT5.to_library,
        umt5_config,
    ),
    Layout(
        "UMT5EncoderModel",
        "text_encoder",
        "transformers' names",
        (
            "shared.weight",
            "encoder.block.0.layer.0.SelfAttention.q.weight",
            "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        _same,
        umt5_config,
    ),
    Layout(
        "AutoencoderKLWan",
        "vae",
        "Wan's own names",
        ("encoder.conv1.weight", "conv2.weight", "decoder.middle.0.residual.0.gamma"),
        vae_names,
        vae_config,
    ),
)
"""Every network and layout that is read from a file."""


def recognize(keys: Iterable[str], part: str | None = None) -> Recognized | None:
    """Return what the keys of a file are; None if they are of none of the layouts.

    Args:
        keys: Keys of the file, which may contain several networks under different prefixes.
        part: Name of the part whose network is wanted; None for the first that is found.
    """
    present = set(keys)
    for layout in LAYOUTS:
        if part is not None and layout.part != part_kind(part):
            continue
        for prefix in _PREFIXES[layout.part]:
            if all(prefix + mark in present for mark in layout.marks):
                return Recognized(layout, prefix)
    return None


def part_kind(part: str) -> str:
    """Return the name of a part without the number of its expert."""
    return part.removesuffix("_2") if part.startswith("transformer") else part


def translated(
    stored: Mapping[str, StoredTensor], recognized: Recognized, where: str
) -> dict[str, StoredTensor]:
    """Return the tensors of a file under the library's names, with the scales of fp8 applied.

    Args:
        stored: Tensors of the file by its keys.
        recognized: Network and layout of the keys.
        where: Name of the file in messages.

    Raises:
        InvalidRequest: The network has no such tensors, or weights are quantized in a way that is not read.
    """
    own = own_tensors(stored, recognized, where)
    translate = recognized.layout.translate({key: tensor.shape for key, tensor in own.items()})
    names = {key: translate(key) for key in own}
    if unknown := sorted(key for key, name in names.items() if name is None):
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise InvalidRequest(
            f"{where} must have the keys of {recognized.summary}, got {', '.join(unknown[:5])}{more}"
        )
    return {str(names[key]): tensor for key, tensor in own.items()}


def own_tensors(
    stored: Mapping[str, StoredTensor], recognized: Recognized, where: str
) -> dict[str, StoredTensor]:
    """Return a network's tensors by the file's keys without prefix, with the scales of fp8 applied."""
    prefix = recognized.prefix
    own = {
        key.removeprefix(prefix): tensor
        for key, tensor in stored.items()
        if key.startswith(prefix) and key not in _BESIDE
    }
    return with_scales(own, where)


def config_of(
    stored: Mapping[str, StoredTensor], recognized: Recognized, where: str, stated: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the configuration of a file's network that follows from its shapes.

    Args:
        stored: Tensors of the file by its keys.
        recognized: Network and layout of the keys.
        where: Name of the file in messages.
        stated: Configuration beside the file or of the checkpoint, for what shapes leave open.

    Raises:
        InvalidRequest: The shapes describe no such network, or one that is not read from such a file.
    """
    read = own_tensors if recognized.layout.part == "vae" else translated
    shapes = {key: tensor.shape for key, tensor in read(stored, recognized, where).items()}
    return recognized.layout.config(shapes, where, stated)
