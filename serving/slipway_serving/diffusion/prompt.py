"""From texts to a denoiser's text input: asked of the served prompt model, padded to the rows it takes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from slipway_serving.errors import InvalidRequest, Unrecoverable
from slipway_serving.program import Models, one_text
from slipway_serving.watch import Watch


def encode_prompts(
    texts: Mapping[str, str], model: str, rows: int, models: Models, watch: Watch, where: str
) -> NDArray[np.float32]:
    """Encode prompts, one call each, which never share a batch.

    Args:
        texts: by the request's field.
        model: takes a :class:`~slipway_serving.diffusion.requests.PromptRequest` and answers with
            :class:`~slipway_serving.diffusion.requests.PromptEmbeds`.
        rows: of the denoiser's text input.
        models: reach it.
        watch: asked before each.
        where: whose request it is, for messages.

    Returns:
        [texts, rows, width], float32; rows beyond a prompt's own tokens are zero.

    Raises:
        InvalidRequest: a prompt is refused; the message names its field.
        Unrecoverable: the embeddings are not finite.
    """
    embeds = []
    for field, text in texts.items():
        watch.check(f"before encoding {field}")
        try:
            found = models.call(model, {"prompt": one_text(text)}, ["prompt_embeds", "attention_mask"])
        except InvalidRequest as error:
            raise InvalidRequest(f"{where}: {field}: {error}") from error
        padded = pad_rows(found["prompt_embeds"][0], int(found["attention_mask"].sum()), rows)
        if not np.isfinite(padded).all():
            raise Unrecoverable(
                f"{where}: the embeddings of {field} must be finite, got non-finite values from {model};"
                " try another precision of the export"
            )
        embeds.append(padded)
    return np.stack(embeds)


def pad_rows(embeds: NDArray[np.float32], tokens: int, rows: int) -> NDArray[np.float32]:
    """Return a prompt's embeddings in the rows of a network's input: its own tokens, then zeros.

    Args:
        embeds: [at least tokens, width].
        tokens: that are the prompt's own.
        rows: of the input, at least as many.
    """
    padded = np.zeros((rows, embeds.shape[1]), np.float32)
    padded[:tokens] = embeds[:tokens]
    return padded
