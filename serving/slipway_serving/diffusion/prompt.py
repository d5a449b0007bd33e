"""Text input of a denoiser: embeddings from the served prompt model, padded to the denoiser's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.program import Models, text_tensor


@dataclass(frozen=True)
class EncodedPrompts:
    """Embeddings of prompts, and which rows of them are tokens.

    Args:
        embeds: Embeddings, [texts, rows, width], float32; rows beyond a prompt's own tokens are zero.
        mask: True for the rows of a prompt's own tokens, [texts, rows].
    """

    embeds: NDArray[np.float32]
    mask: NDArray[np.bool_]


def encode_prompts(
    texts: Mapping[str, str], model: str, rows: int, models: Models, interruption: Interruption, where: str
) -> NDArray[np.float32]:
    """Encode prompts for a network that attends to all rows; see :func:`encode_masked_prompts`.

    Returns:
        Embeddings, [texts, rows, width], float32; rows beyond a prompt's own tokens are zero.
    """
    return encode_masked_prompts(texts, model, rows, models, interruption, where).embeds


def encode_masked_prompts(
    texts: Mapping[str, str], model: str, rows: int, models: Models, interruption: Interruption, where: str
) -> EncodedPrompts:
    """Encode prompts with one call each; they never share a batch.

    Args:
        texts: Prompts by field of the request.
        model: Name of the prompt model. It takes a
            :class:`~slipway_serving.protocol.diffusion.requests.PromptRequest` and returns
            :class:`~slipway_serving.protocol.diffusion.requests.PromptEmbeds`.
        rows: Number of rows of the denoiser's text input.
        models: Access to the prompt model.
        interruption: Check for cancellation and time limit, called before each prompt.
        where: Name of the model or request, for messages.

    Returns:
        Embeddings and the mask for a network that attends to a prompt's own tokens only.

    Raises:
        InvalidRequest: The prompt model refuses a prompt; the message names its field.
        Unrecoverable: The embeddings are not finite.
    """
    embeds, tokens = [], []
    for field, text in texts.items():
        interruption.check(f"before encoding {field}")
        try:
            found = models.call(model, {"prompt": text_tensor(text)}, ["prompt_embeds", "attention_mask"])
        except InvalidRequest as error:
            raise InvalidRequest(f"{where}: {field}: {error}") from error
        padded = pad_rows(found["prompt_embeds"][0], int(found["attention_mask"].sum()), rows)
        if not np.isfinite(padded).all():
            raise Unrecoverable(
                f"{where}: the embeddings of {field} must be finite, got non-finite values from {model};"
                " try another precision of the export"
            )
        embeds.append(padded)
        tokens.append(int(found["attention_mask"].sum()))
    return EncodedPrompts(np.stack(embeds), np.arange(rows) < np.array(tokens)[:, None])


def pad_rows(embeds: NDArray[np.float32], tokens: int, rows: int) -> NDArray[np.float32]:
    """Pad a prompt's embeddings with zeros to the number of rows of a network's input.

    Args:
        embeds: Embeddings, [at least tokens, width].
        tokens: Number of tokens of the prompt; later rows of `embeds` are dropped.
        rows: Number of rows of the input, at least `tokens`.
    """
    padded = np.zeros((rows, embeds.shape[1]), np.float32)
    padded[:tokens] = embeds[:tokens]
    return padded
