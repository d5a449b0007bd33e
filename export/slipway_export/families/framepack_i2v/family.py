"""FramePack image-to-video: a HunyuanVideo transformer with history at three resolutions, and its encoders.

A checkpoint has diffusers' layout. The public one is spread over three repositories: HunyuanVideo has the
text encoders, tokenizers, VAE and scheduler; the transformer and the image encoder have one each (`--part`).
All sizes follow from the parts' configurations. Each component needs only its own part, so an export contains
the components of the parts that are given (`--model-path`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.known_words import known_words
from slipway_export.checkpoint.note import checkpoint_note
from slipway_export.families.framepack_i2v import encoders, vae
from slipway_export.families.framepack_i2v.cached import cut_transformer
from slipway_export.families.framepack_i2v.presets import IMAGE_TOKENS, PRESETS, PUBLIC_AXES
from slipway_export.families.framepack_i2v.prompt import CROP_START, PROMPT_TEMPLATE
from slipway_export.spec import (
    AuthoredModel,
    Axis,
    Component,
    DType,
    Family,
    Loading,
    Part,
    Plan,
    Precision,
    TensorSpec,
    Tolerance,
    Variant,
)
from slipway_serving.families.framepack_i2v.denoising import Denoising
from slipway_serving.families.framepack_i2v.facts import FACTS_FILE, Facts, ModelNames, Picture, Prompt, Tiles
from slipway_serving.families.framepack_i2v.request import (
    PIXELS_PER_TOKEN,
    ImageToVideoRequest,
    TokensRequest,
)
from slipway_serving.protocol.errors import InvalidRequest, raise_all

if TYPE_CHECKING:
    from torch import nn

    from slipway_serving.diffusion.videos.sizes import StateSize

NAME = "framepack_i2v"
TRANSFORMER = "lllyasviel/FramePackI2V_HY"
TOKENIZERS = ("tokenizer", "tokenizer_2")
SCHEDULER_FILE = "scheduler/scheduler_config.json"
PATCH = vae.PATCH
# Latent frames that a section sees besides its own: the picture and the nearest frame of history at full
# size, then history at half size, then at a quarter.
CLEAN_FRAMES, HISTORY_2X_FRAMES, HISTORY_4X_FRAMES = 2, 2, 16
TEXT_TOKENS = 256
_EXAMPLE_PICTURE, _EXAMPLE_PROMPTS = "picture.png", "picture.txt"
# The tiles of the VAE in diffusers: 16 + 1 video frames each, with a stride of 12 video frames.
TILES = Tiles(frames=5, stride=3, blended=4)

TOLERANCE = {
    Precision.FP32: Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.99999),
    Precision.FP16: Tolerance(max_abs=0.2, relative_l2=2e-2, cosine=0.999),
    Precision.BF16: Tolerance(max_abs=1.0, relative_l2=5e-2, cosine=0.998),
    Precision.INT8: Tolerance(max_abs=1.0, relative_l2=8e-2, cosine=0.997),
    Precision.FP8: Tolerance(max_abs=2.0, relative_l2=0.2, cosine=0.985),
    Precision.INT4: Tolerance(max_abs=3.0, relative_l2=0.3, cosine=0.96),
}
# The embedders (time, guidance, pooled text) and the last projection are small and affect all later layers.
KEEP_FLOAT = ("*.time_text_embed", "transformer.proj_out")


def plan(checkpoint: Checkpoint, axes: Sequence[Axis], *, first_block_cache: bool = False) -> Plan:
    """Describe the models that a checkpoint becomes: the components of the parts that it has.

    Args:
        checkpoint: Checkpoint; only its configurations are read.
        axes: Ranges of the family's axes.
        first_block_cache: True if the transformer is cut into graphs that an authored model runs, so that
            requests may ask it to reuse the outputs of its later blocks.

    Raises:
        InvalidRequest: A part is not as the graphs need it, or parts do not fit together.
    """
    by_name = {axis.name: axis for axis in axes}
    makers_by_part: Mapping[str, Sequence[Callable[[], Component]]] = {
        "transformer": (partial(transformer, checkpoint, by_name),),
        "text_encoder": (partial(encoders.llama_text, checkpoint),),
        "text_encoder_2": (partial(encoders.clip_text, checkpoint),),
        "image_encoder": (partial(encoders.siglip_image, checkpoint),),
        "vae": (
            partial(vae.vae_encoder, checkpoint, by_name),
            partial(vae.vae_decoder, checkpoint, by_name),
        ),
    }
    _check_widths(checkpoint)
    components = [
        make()
        for part, makers in makers_by_part.items()
        if checkpoint.has(f"{part}/config.json")
        for make in makers
    ]
    pipeline = _pipeline(checkpoint, axes, first_block_cache)
    if not first_block_cache:
        return Plan(tuple(components), pipeline)
    if not checkpoint.has("transformer/config.json"):
        raise InvalidRequest(
            "export: transformer must be among the parts for variant first-block-cache, got none; try --part"
            f" transformer={TRANSFORMER}"
        )
    whole, *others = components
    cut = cut_transformer(checkpoint, _transformer_config(checkpoint), whole)
    cached = AuthoredModel(Denoising.model, source=f"{NAME}_cached_denoiser", request=Denoising)
    return Plan((*cut, *others), (cached, *pipeline))


def _pipeline(
    checkpoint: Checkpoint, axes: Sequence[Axis], first_block_cache: bool
) -> tuple[AuthoredModel, ...]:
    """Return the authored models around the graphs; none if the checkpoint lacks a part."""
    if not all(checkpoint.has(f"{part.name}/{file}") for part in FAMILY.parts for file in part.files):
        return ()
    if not all(checkpoint.has(name) for name in TOKENIZERS):
        return ()
    from slipway_serving.families.framepack_i2v.pipeline import check_schedules

    known = replace(facts_of(checkpoint, axes), first_block_cache=first_block_cache)
    check_schedules(known, f"{checkpoint.where(SCHEDULER_FILE)}: {SCHEDULER_FILE}")
    facts = known.to_json
    by_name = {axis.name: axis for axis in axes}
    sides = {side: by_name[f"token_{side}"] for side in ("height", "width")}
    usual = {side: PIXELS_PER_TOKEN * axis.opt for side, axis in sides.items()}
    ranges = {
        side: (PIXELS_PER_TOKEN * axis.min, PIXELS_PER_TOKEN * axis.max) for side, axis in sides.items()
    }
    tokenizers = {f"1/{name}": checkpoint.file(name) for name in TOKENIZERS}
    return (
        AuthoredModel(TokensRequest.model, {f"1/{FACTS_FILE}": facts, **tokenizers}, request=TokensRequest),
        AuthoredModel(
            NAME,
            {f"1/{FACTS_FILE}": facts},
            request=ImageToVideoRequest,
            usual=usual,
            ranges=ranges,
            words=known_words(checkpoint),
            examples=_examples(checkpoint),
            note=checkpoint_note(checkpoint),
        ),
    )


def _examples(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the picture that comes with a checkpoint, as base64 text, and the prompt written for it."""
    if not (checkpoint.has(_EXAMPLE_PICTURE) and checkpoint.has(_EXAMPLE_PROMPTS)):
        return {}
    picture = checkpoint.file(_EXAMPLE_PICTURE).read_bytes()
    first, *_ = checkpoint.file(_EXAMPLE_PROMPTS).read_text(encoding="utf-8").splitlines()
    return {"image": base64.b64encode(picture).decode(), "prompt": first.partition("\t")[2] or first}


def transformer(checkpoint: Checkpoint, axes: Mapping[str, Axis]) -> Component:
    """Describe the graph of one denoising step of a section.

    Batch, height, width and the length of the text vary. The latent frames do not: a section has 9, as
    FramePack was trained (the axis `latent_frames`), in either order. Its history always has 2 latent frames
    at full size, 2 at half size and 16 at a quarter; latents of missing history are zeros. Both orders use
    the same graph and differ only in the indices: the clean frames are [0] and the frame after the section if
    sections are inverted, [0] and the frame before it if they go forward.

    Args:
        checkpoint: Checkpoint with a part `transformer`. The number of image tokens comes from its part
            `image_encoder`; without that part it is SigLIP so400m's at 384 px.
        axes: Axes by name, of which all but `tile_frames` are used.

    Raises:
        InvalidRequest: The transformer is not FramePack's.
    """
    config = _transformer_config(checkpoint)
    images = IMAGE_TOKENS
    if checkpoint.has("image_encoder/config.json"):
        images = encoders.image_tokens(checkpoint)

    def latents(frames: int | str) -> tuple[int | str, ...]:
        return ("batch", config["in_channels"], frames, f"{PATCH} * token_height", f"{PATCH} * token_width")

    def tensor(name: str, *shape: int | str, **kinds: Any) -> TensorSpec:
        return TensorSpec(name, DType.FLOAT32, shape, **kinds)

    def indices(name: str, frames: int | str, example: Callable[[tuple[int, ...]], Any]) -> TensorSpec:
        return TensorSpec(f"indices_{name}", DType.INT64, (frames,), example=example)

    text = ("batch", "text_tokens")
    section = axes["latent_frames"].opt
    return Component(
        name="transformer",
        inputs=(
            tensor("hidden_states", *latents("latent_frames")),
            tensor("timestep", "batch", values=(0, 1000)),
            tensor("encoder_hidden_states", *text, config["text_embed_dim"]),
            TensorSpec("encoder_attention_mask", DType.INT64, text, example=encoders.lengths_mask),
            tensor("pooled_projections", "batch", config["pooled_projection_dim"]),
            tensor("image_embeds", "batch", images, config["image_proj_dim"]),
            indices("latents", "latent_frames", partial(_from, 1)),
            tensor("guidance", "batch", values=(1000, 10_000)),
            tensor("latents_clean", *latents(CLEAN_FRAMES)),
            indices("latents_clean", CLEAN_FRAMES, partial(_first_and, section + 1)),
            tensor("latents_history_2x", *latents(HISTORY_2X_FRAMES)),
            indices("latents_history_2x", HISTORY_2X_FRAMES, partial(_from, section + 2)),
            tensor("latents_history_4x", *latents(HISTORY_4X_FRAMES)),
            indices("latents_history_4x", HISTORY_4X_FRAMES, partial(_from, section + 2 + HISTORY_2X_FRAMES)),
        ),
        outputs=(tensor("sample", *latents("latent_frames")),),
        axes=tuple(
            axes[name] for name in ("batch", "latent_frames", "token_height", "token_width", "text_tokens")
        ),
        load=partial(_load, checkpoint),
        lower=_lower,
        keep_float=KEEP_FLOAT,
        tolerance=TOLERANCE,
        rows=(1, 1),
    )


def _from(first: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.arange(first, first + shape[0], dtype=np.int64)


def _first_and(other: int, _: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.array([0, other], np.int64)


def _load(checkpoint: Checkpoint, precision: Precision, loading: Loading) -> nn.Module:
    from diffusers import HunyuanVideoFramepackTransformer3DModel

    from slipway_export.families.framepack_i2v.network import Transformer

    return Transformer(
        checkpoint.load("transformer", HunyuanVideoFramepackTransformer3DModel, precision, loading)
    )


def _lower(module: nn.Module) -> AbstractContextManager[None]:
    from slipway_export.families.framepack_i2v.network import lowered_attention

    return lowered_attention(module)


def _transformer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the transformer's configuration; refuse any but FramePack's, HunyuanVideo's own included."""
    file = "transformer/config.json"
    config = {"in_channels": 16, "out_channels": 16, "image_proj_dim": 1152} | checkpoint.config(file)
    expected = {"patch_size": PATCH, "patch_size_t": 1, "guidance_embeds": True}
    problems = [
        f"{key} must be {value}, got {config[key]}"
        for key, value in expected.items()
        if config.get(key, value) != value
    ]
    problems += [
        f"{key} must be true, got {config.get(key)}; try --part transformer={TRANSFORMER}"
        for key in ("has_image_proj", "has_clean_x_embedder")
        if not config.get(key)
    ]
    head, parts = config.get("attention_head_dim", 128), config.get("rope_axes_dim", (16, 56, 56))
    if len(parts) != 3 or any(part % 2 for part in parts) or sum(parts) != head:
        problems.append(
            f"rope_axes_dim must be three even numbers whose sum is attention_head_dim ({head}), got {parts}"
        )
    raise_all(f"{checkpoint.where(file)}: {file}", problems)
    return config


def _check_widths(checkpoint: Checkpoint) -> None:
    """Refuse parts that do not fit together, as parts from different repositories may not."""
    if not checkpoint.has("transformer/config.json"):
        return
    config = _transformer_config(checkpoint)
    problems = []
    for key, part, other in (
        ("text_embed_dim", "text_encoder", "hidden_size"),
        ("pooled_projection_dim", "text_encoder_2", "hidden_size"),
        ("image_proj_dim", "image_encoder", "hidden_size"),
        ("in_channels", "vae", "latent_channels"),
        ("out_channels", "vae", "latent_channels"),
    ):
        if not checkpoint.has(f"{part}/config.json"):
            continue
        expected = checkpoint.config(f"{part}/config.json").get(other)
        if config.get(key) != expected:
            problems.append(
                f"transformer/config.json: {key} must be {expected} as {other} of {part}"
                f" ({checkpoint.where(part)}), got {config.get(key)}"
            )
    raise_all(checkpoint.where("transformer"), problems)


def facts_of(checkpoint: Checkpoint, axes: Sequence[Axis]) -> Facts:
    """Return the facts about a complete checkpoint that the served pipeline needs.

    Args:
        checkpoint: Checkpoint with all its parts.
        axes: Ranges of the graphs' axes.

    Raises:
        InvalidRequest: A part is refused as in :func:`plan`, or a file is missing.
    """
    _check_widths(checkpoint)
    by_name = {axis.name: axis for axis in axes}
    section = by_name["latent_frames"]
    picture = checkpoint.config("feature_extractor/preprocessor_config.json")
    clip = encoders.clip_text(checkpoint)
    return Facts(
        prompt=Prompt(PROMPT_TEMPLATE, CROP_START, TEXT_TOKENS, clip.points()["max"]["tokens"]),
        picture=Picture(
            side_px=picture["size"]["height"],
            mean=tuple(picture["image_mean"]),
            std=tuple(picture["image_std"]),
            resample=picture["resample"],
        ),
        latent_channels=_transformer_config(checkpoint)["in_channels"],
        frames_per_latent=vae.TEMPORAL,
        pixels_per_latent=vae.SPATIAL,
        section_frames=section.opt if section.min == section.max else None,
        clean_frames=CLEAN_FRAMES,
        history_2x_frames=HISTORY_2X_FRAMES,
        history_4x_frames=HISTORY_4X_FRAMES,
        tiles=TILES,
        scheduler=checkpoint.config(SCHEDULER_FILE),
        axes={axis.name: (axis.min, axis.opt, axis.max) for axis in axes},
        models=ModelNames(
            **{name: f"{NAME}_{name}" for name in FAMILY.parts_alone}, tokenizer=TokensRequest.model
        ),
    )


def _state_size(folder: Path) -> StateSize:
    from slipway_serving.families.framepack_i2v.pipeline import usual_state_size

    return usual_state_size(folder)


FAMILY = Family(
    name=NAME,
    upstream=f"hunyuanvideo-community/HunyuanVideo with {TRANSFORMER} and lllyasviel/flux_redux_bfl",
    summary="a picture and a prompt to video, section by section",
    served=(NAME,),
    requests=(ImageToVideoRequest,),
    layout=(
        Part("transformer", ("config.json",), components=("transformer",), lora="transformer"),
        Part("text_encoder", ("config.json",), components=("llama_text",)),
        Part("text_encoder_2", ("config.json",), components=("clip_text",)),
        Part("image_encoder", ("config.json",), components=("siglip_image",)),
        Part("vae", ("config.json",), components=("vae_encoder", "vae_decoder")),
        Part("tokenizer"),
        Part("tokenizer_2"),
        Part("feature_extractor", ("preprocessor_config.json",)),
        Part("scheduler", ("scheduler_config.json",)),
    ),
    axes=PUBLIC_AXES,
    presets=PRESETS,
    plan=plan,
    state_size=_state_size,
    variants={
        "first-block-cache": Variant(
            "a transformer that requests may ask to reuse what its later blocks gave (cache_threshold)",
            partial(plan, first_block_cache=True),
        )
    },
    # The FramePack fork's converter used these names; Slipway exports its `vae` as two graphs.
    former_names={
        "framepack_i2v": ("transformer",),
        "flux_redux": ("siglip_image",),
        "vae": ("vae_encoder", "vae_decoder"),
    },
)
