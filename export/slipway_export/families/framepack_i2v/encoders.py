"""Components of FramePack's encoders: LLaMA and CLIP for the prompt, SigLIP for the picture."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.spec import Axis, Component, DType, Loading, Precision, TensorSpec, Tolerance
from slipway_export.verification.prompts import check_vocabulary, prompt_ids
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from torch import nn

Array = np.ndarray[Any, Any]

# Hidden states have no fixed scale, so the relative bounds decide and the absolute one is a safety net. Each
# row belongs to one token or patch; `row_cosine` bounds each row, so that no bad row is lost in the average.
ENCODER_TOLERANCE = {
    Precision.FP32: Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.99999, row_cosine=0.9999),
    Precision.FP16: Tolerance(max_abs=0.2, relative_l2=2e-2, cosine=0.999, row_cosine=0.998),
    Precision.BF16: Tolerance(max_abs=1.0, relative_l2=5e-2, cosine=0.998, row_cosine=0.99),
    Precision.INT8: Tolerance(max_abs=1.0, relative_l2=8e-2, cosine=0.997, row_cosine=0.99),
    Precision.FP8: Tolerance(max_abs=1.0, relative_l2=0.1, cosine=0.995, row_cosine=0.99),
    Precision.INT4: Tolerance(max_abs=3.0, relative_l2=0.3, cosine=0.96, row_cosine=0.9),
}
# Some tokens and channels of these encoders have far larger values than the others, so integer precisions do
# not quantize the activations.
OUTLIERS = ("*",)


def lengths_mask(shape: tuple[int, ...]) -> Array:
    """Return an example of a padding mask: ones, then zeros, with another length in each row.

    Args:
        shape: Size of the mask, [batch, tokens].

    Returns:
        Mask in int64; three quarters of the first row are ones, half of the second, and so on.
    """
    batch, tokens = shape
    lengths = [max(1, tokens * (3 - row % 3) // 4) for row in range(batch)]
    return (np.arange(tokens)[None] < np.array(lengths)[:, None]).astype(np.int64)


def _some_ids(vocabulary: int, shape: tuple[int, ...]) -> Array:
    """Return random ids in place of a tokenizer's; each row ends in the largest id, as CLIP texts do."""
    ids = np.random.default_rng(0).integers(0, vocabulary - 1, size=shape)
    ids[:, -1] = vocabulary - 1
    return ids


def _input_ids(checkpoint: Checkpoint, tokenizer: str, config: str, vocabulary: int) -> TensorSpec:
    example = partial(_some_ids, vocabulary)
    if checkpoint.has(tokenizer):
        check_vocabulary(checkpoint, tokenizer, config, vocabulary)
        example = partial(prompt_ids, checkpoint.file(tokenizer))
    return TensorSpec("input_ids", DType.INT64, ("batch", "tokens"), example=example)


def llama_text(checkpoint: Checkpoint) -> Component:
    """Describe the graph that maps the tokens of a prompt in its template to LLaMA's hidden states.

    Args:
        checkpoint: Checkpoint with a part `text_encoder`.

    Raises:
        InvalidRequest: The encoder has no layers besides those that are skipped.
    """
    from transformers import LlamaConfig

    from slipway_export.families.framepack_i2v.encoder_networks import SKIPPED_LAYERS

    file = "text_encoder/config.json"
    config = LlamaConfig.from_dict(checkpoint.config(file))
    if config.num_hidden_layers <= SKIPPED_LAYERS:
        raise InvalidRequest(
            f"{checkpoint.where(file)}: {file}: num_hidden_layers must be above {SKIPPED_LAYERS}, whose last"
            f" are not run, got {config.num_hidden_layers}"
        )
    return Component(
        name="llama_text",
        inputs=(
            _input_ids(checkpoint, "tokenizer", file, config.vocab_size),
            TensorSpec("attention_mask", DType.INT64, ("batch", "tokens"), example=lengths_mask),
        ),
        outputs=(TensorSpec("hidden_states", DType.FLOAT32, ("batch", "tokens", config.hidden_size)),),
        # The template has 95 tokens; a prompt has up to 256 in diffusers, or up to 512.
        axes=(Axis("batch", 1, 1, 2), Axis("tokens", 1, 351, 607)),
        load=partial(_load_llama, checkpoint),
        tolerance=ENCODER_TOLERANCE,
        outliers=OUTLIERS,
    )


def clip_text(checkpoint: Checkpoint) -> Component:
    """Describe the graph that maps the tokens of a prompt to CLIP's pooled vector.

    Args:
        checkpoint: Checkpoint with a part `text_encoder_2`.
    """
    from transformers import CLIPTextConfig

    file = "text_encoder_2/config.json"
    config = CLIPTextConfig.from_dict(checkpoint.config(file))
    return Component(
        name="clip_text",
        inputs=(_input_ids(checkpoint, "tokenizer_2", file, config.vocab_size),),
        outputs=(TensorSpec("pooler_output", DType.FLOAT32, ("batch", config.hidden_size)),),
        axes=(
            Axis("batch", 1, 1, 2),
            Axis("tokens", 2, config.max_position_embeddings, config.max_position_embeddings),
        ),
        load=partial(_load_clip, checkpoint),
        tolerance=ENCODER_TOLERANCE,
        outliers=OUTLIERS,
    )


def siglip_image(checkpoint: Checkpoint) -> Component:
    """Describe the graph that maps normalized pictures to the hidden states of their patches.

    Args:
        checkpoint: Checkpoint with a part `image_encoder`.
    """
    from transformers import SiglipVisionConfig

    config = SiglipVisionConfig.from_dict(checkpoint.config("image_encoder/config.json"))
    picture = ("batch", 3, config.image_size, config.image_size)
    states = ("batch", image_tokens(checkpoint), config.hidden_size)
    return Component(
        name="siglip_image",
        inputs=(TensorSpec("pixel_values", DType.FLOAT32, picture),),
        outputs=(TensorSpec("last_hidden_state", DType.FLOAT32, states),),
        axes=(Axis("batch", 1, 1, 4),),
        load=partial(_load_siglip, checkpoint),
        tolerance=ENCODER_TOLERANCE,
        outliers=OUTLIERS,
    )


def image_tokens(checkpoint: Checkpoint) -> int:
    """Return the number of patches that a checkpoint's image encoder makes: 729 for so400m at 384 px."""
    from transformers import SiglipVisionConfig

    config = SiglipVisionConfig.from_dict(checkpoint.config("image_encoder/config.json"))
    return int(config.image_size // config.patch_size) ** 2


def _load_llama(checkpoint: Checkpoint, precision: Precision, loading: Loading) -> nn.Module:
    """Load the LLaMA text encoder of a checkpoint."""
    from transformers import LlamaConfig, LlamaModel

    from slipway_export.families.framepack_i2v.encoder_networks import LlamaText

    config = checkpoint.config("text_encoder/config.json")

    def build() -> LlamaModel:
        return LlamaModel(LlamaConfig.from_dict(config))

    return LlamaText(checkpoint.load("text_encoder", LlamaModel, precision, loading, build, prefix="model."))


def _load_clip(checkpoint: Checkpoint, precision: Precision, loading: Loading) -> nn.Module:
    """Load the CLIP text encoder of a checkpoint."""
    from transformers import CLIPTextConfig, CLIPTextModel

    from slipway_export.families.framepack_i2v.encoder_networks import ClipText

    config = checkpoint.config("text_encoder_2/config.json")

    def build() -> CLIPTextModel:
        return CLIPTextModel(CLIPTextConfig.from_dict(config))

    return ClipText(
        checkpoint.load("text_encoder_2", CLIPTextModel, precision, loading, build, prefix="text_model.")
    )


def _load_siglip(checkpoint: Checkpoint, precision: Precision, loading: Loading) -> nn.Module:
    """Load the SigLIP image encoder of a checkpoint."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    from slipway_export.families.framepack_i2v.encoder_networks import SiglipImage

    config = checkpoint.config("image_encoder/config.json")

    def build() -> SiglipVisionModel:
        return SiglipVisionModel(SiglipVisionConfig.from_dict(config))

    siglip = checkpoint.load(
        "image_encoder", SiglipVisionModel, precision, loading, build, prefix="vision_model."
    )
    return SiglipImage(siglip)
