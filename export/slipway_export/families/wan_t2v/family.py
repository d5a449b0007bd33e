"""Wan video: text and image to video of Wan2.2 and Wan2.1, and FastWan, in the layout of diffusers.

The checkpoint's `model_index.json` and the parts' `config.json` give every size below; no value of a
particular checkpoint is hard-coded here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.known_words import known_words
from slipway_export.checkpoint.note import checkpoint_note
from slipway_export.families.wan_t2v.components import cut_denoiser, denoiser, load_vae, text_encoder
from slipway_export.families.wan_t2v.conditioning import (
    Conditioning,
    check_widths,
    conditioning_of,
    picture_encoders,
)
from slipway_export.families.wan_t2v.image_encoder import preparation
from slipway_export.families.wan_t2v.pipeline_facts import (
    NAME,
    SCHEDULER_FILE,
    Described,
    pipeline_facts,
    ranges,
    usual_values,
)
from slipway_export.families.wan_t2v.presets import EXAMPLE_FILE, PRESETS, PUBLIC_AXES
from slipway_export.networks.wan_vae import video_decoder
from slipway_export.spec import AuthoredModel, Axis, Family, Part, Plan, Variant
from slipway_serving.families.wan_t2v.facts import TEXT
from slipway_serving.families.wan_t2v.request import Denoising, TextToVideoRequest
from slipway_serving.protocol.diffusion.requests import PromptEmbeds, PromptRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.video.requests import Decoding

if TYPE_CHECKING:
    from slipway_serving.diffusion.videos.sizes import StateSize


def plan(checkpoint: Checkpoint, axes: Sequence[Axis], *, first_block_cache: bool = False) -> Plan:
    """Describe the models that a Wan checkpoint becomes.

    Args:
        checkpoint: Checkpoint; only its configurations are read.
        axes: Ranges of the family's axes.
        first_block_cache: True if each denoiser is cut into graphs that an authored model runs, so that
            requests may ask it to reuse the outputs of its later blocks.

    Raises:
        InvalidRequest: The checkpoint is none of this family.
    """
    index = checkpoint.config("model_index.json")
    where = f"checkpoint {checkpoint.source}: model_index.json"
    conditioning = conditioning_of(checkpoint, index, where)
    if first_block_cache and conditioning.kind != TEXT:
        raise InvalidRequest(
            f"{where}: variant must be left out for a checkpoint that takes pictures, got first-block-cache,"
            " which is for text-to-video checkpoints"
        )
    experts = _experts(index, where)
    check_widths(checkpoint, experts.values(), conditioning)
    _check_early(checkpoint, conditioning)
    by_name = {axis.name: axis for axis in axes}
    described = Described(checkpoint, index, conditioning, experts, by_name)
    vae = partial(load_vae, checkpoint)
    first, following, stepped = video_decoder(checkpoint.config("vae/config.json"), vae, by_name)
    components = [text_encoder(checkpoint)]
    for name, part in experts.items():
        whole = denoiser(checkpoint, part, name, by_name, conditioning)
        components += cut_denoiser(checkpoint, part, whole) if first_block_cache else [whole]
    encoders = picture_encoders(checkpoint, vae, by_name, conditioning)
    authored = _authored(described, first_block_cache=first_block_cache)
    return Plan((*components, *encoders, first, following), authored, (stepped,))


def _authored(described: Described, *, first_block_cache: bool) -> tuple[AuthoredModel, ...]:
    """Describe the authored models of a checkpoint."""
    checkpoint = described.checkpoint
    facts = partial(pipeline_facts, described, first_block_cache=first_block_cache)
    return (
        *(
            AuthoredModel(f"{NAME}_{name}", source="wan_t2v_cached_denoiser", request=Denoising)
            for name in (described.experts if first_block_cache else ())
        ),
        AuthoredModel(
            "wan_t2v_tokenizer", {"1/tokenizer": checkpoint.file("tokenizer")}, request=PromptRequest
        ),
        AuthoredModel("wan_t2v_vae_decoder", request=Decoding),
        AuthoredModel("wan_t2v_prompt", request=PromptRequest, events=(PromptEmbeds,)),
        AuthoredModel(
            "wan_t2v",
            {"1/pipeline.json": facts},
            request=TextToVideoRequest,
            usual=usual_values(described),
            ranges=ranges(described),
            words=known_words(checkpoint),
            examples=_examples(checkpoint),
            note=checkpoint_note(checkpoint),
        ),
    )


def _examples(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the prompt that comes with a checkpoint."""
    if not checkpoint.has(EXAMPLE_FILE):
        return {}
    return {"prompt": checkpoint.file(EXAMPLE_FILE).read_text(encoding="utf-8").strip()}


def _experts(index: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the name of the checkpoint's part for each denoiser."""
    second = index.get("transformer_2") or [None, None]
    ratio = index.get("boundary_ratio")
    if second[1] is None:
        if ratio is not None:
            raise InvalidRequest(f"{where}: boundary_ratio must be null without transformer_2, got {ratio}")
        return {"denoiser_high": "transformer"}
    if not isinstance(ratio, float) or not 0.0 < ratio < 1.0:
        raise InvalidRequest(
            f"{where}: boundary_ratio must be between 0 and 1 with transformer_2, got {ratio}"
        )
    return {"denoiser_high": "transformer", "denoiser_low": "transformer_2"}


def _check_early(checkpoint: Checkpoint, conditioning: Conditioning) -> None:
    """Refuse what the served pipeline cannot use, before any work: a scheduler, or an image processor."""
    from slipway_serving.families.wan_t2v.pipeline import check_schedules

    # Only an export needs these files; a network that PyTorch serves may come without them.
    if checkpoint.has(SCHEDULER_FILE):
        where = f"{checkpoint.where(SCHEDULER_FILE)}: {SCHEDULER_FILE}"
        check_schedules(checkpoint.config(SCHEDULER_FILE), where)
        if conditioning.embedded:
            preparation(checkpoint)


def _state_size(folder: Path) -> StateSize:
    from slipway_serving.families.wan_t2v.pipeline import usual_state_size

    return usual_state_size(folder)


FAMILY = Family(
    name=NAME,
    upstream="Wan-AI/Wan2.2-T2V-A14B-Diffusers",
    summary="text and image to video, one or two experts, streamed progress",
    requests=(TextToVideoRequest,),
    served=(NAME, "wan_t2v_prompt"),
    layout=(
        "model_index.json",
        Part("tokenizer"),
        Part("text_encoder", ("config.json",)),
        Part("transformer", ("config.json",), lora="denoiser_high"),
        # The expert for low noise; model_index.json says if the checkpoint has one.
        Part("transformer_2", ("config.json",), optional=True, lora="denoiser_low"),
        # CLIP's image encoder of Wan2.1's image to video, and the preparation of its pictures.
        Part("image_encoder", ("config.json",), optional=True),
        Part("image_processor", ("preprocessor_config.json",), optional=True),
        Part("vae", ("config.json",)),
        Part("scheduler", ("scheduler_config.json",)),
    ),
    axes=PUBLIC_AXES,
    presets=PRESETS,
    plan=plan,
    state_size=_state_size,
    takes_schedule=True,
    variants={
        "first-block-cache": Variant(
            "denoisers that requests may ask to reuse what their later blocks gave (cache_threshold)",
            partial(plan, first_block_cache=True),
        )
    },
)
