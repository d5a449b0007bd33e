"""Inputs for the verification of text encoders: token ids of realistic prompts instead of random ids.

The error of quantization depends on the values that a network meets. Random ids are rare tokens of every
language, which a prompt does not contain.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from slipway_export.checkpoint.checkpoint import Checkpoint

Array = np.ndarray[Any, Any]

# Prompts as text-to-video pipelines get them: a short one, a long one, and a negative one in Chinese
# (the first words of the negative prompt in Wan's own examples).
TEXTS = (
    "A paper boat sails down a rainy street at night; neon signs flicker and people hurry past.",
    "Two anthropomorphic cats in comfy boxing gear and bright gloves fight intensely on a spotlighted stage. "
    "The camera circles them slowly, shallow depth of field, cinematic lighting, 35mm film, fine grain, "
    "dust in the beams of light, the crowd out of focus in the background.",
    "色调艳丽,过曝,静态,细节模糊不清,字幕,风格,作品,画作,画面,静止,整体发灰,最差质量,低质量",
)


def prompt_ids(tokenizer: Path, shape: tuple[int, ...]) -> Array:
    """Return token ids of prompts in a given shape.

    Args:
        tokenizer: Folder of a tokenizer, in transformers' layout.
        shape: Shape of the result, [batch, tokens]. A prompt that is too short is repeated, one that is too
            long is cut off. Each ends as the tokenizer ends a text.

    Returns:
        Ids of that shape, int64.
    """
    batch, tokens = shape
    texts = _tokenized(tokenizer)
    return np.stack([np.append(np.resize(ids[:-1], tokens - 1), ids[-1]) for ids in _rows(texts, batch)])


def check_vocabulary(checkpoint: Checkpoint, tokenizer: str, config: str, embeddings: int) -> None:
    """Refuse a tokenizer whose ids exceed the embeddings of the network that receives them.

    A folder without files is not a tokenizer, and is not refused here.

    Args:
        checkpoint: The checkpoint with both.
        tokenizer: Folder of the tokenizer in the checkpoint.
        config: File of the network's configuration in the checkpoint.
        embeddings: Number of the network's embeddings, ``vocab_size`` of that file.

    Raises:
        InvalidRequest: The tokenizer cannot be loaded, or has ids that the network has no embedding for.
    """
    if not any(checkpoint.file(tokenizer).iterdir()):
        return  # A plan needs only the configurations, so the tokenizer may be missing.
    largest = max(_loaded(checkpoint, tokenizer).get_vocab().values())
    if largest >= embeddings:
        raise InvalidRequest(
            f"{checkpoint.where(tokenizer)}: {tokenizer} must have token ids below {embeddings}, which is"
            f" vocab_size of {config} ({checkpoint.where(config)}), got {largest}; try the tokenizer and the"
            " encoder of one checkpoint"
        )


def _loaded(checkpoint: Checkpoint, tokenizer: str) -> Any:
    """Load a checkpoint's tokenizer."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(checkpoint.file(tokenizer)), local_files_only=True)
    except Exception as error:  # The errors of transformers and tokenizers have no common base.
        reason = " ".join(str(error).split())[:300]
        raise InvalidRequest(
            f"{checkpoint.where(tokenizer)}: {tokenizer} must be a tokenizer that transformers can load, got"
            f" {type(error).__name__}: {reason}"
        ) from error


def _rows(texts: tuple[Array, ...], batch: int) -> list[Array]:
    """Return one text for each row; a repeated text is rotated to begin at another word."""
    rows = []
    for row in range(batch):
        ids, turn = texts[row % len(texts)], row // len(texts)
        rows.append(np.append(np.roll(ids[:-1], -turn), ids[-1]))
    return rows


@lru_cache(maxsize=4)
def _tokenized(tokenizer: Path) -> tuple[Array, ...]:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(tokenizer), local_files_only=True)
    return tuple(np.array(loaded(text)["input_ids"], np.int64) for text in TEXTS)
