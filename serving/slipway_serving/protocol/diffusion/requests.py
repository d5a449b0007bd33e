"""Requests and responses of tokenizers and text encoders: prompts, token ids, embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.diffusion.fields import MAX_PROMPT_CHARACTERS
from slipway_serving.protocol.events import Event
from slipway_serving.protocol.fields import BATCH, Array, Rule
from slipway_serving.protocol.requests import Request


def texts_of(prompts: NDArray[Any]) -> list[str]:
    """Return the prompts of a request as texts; the request was already checked to be UTF-8."""
    return [text if isinstance(text, str) else bytes(text).decode() for text in prompts.flat]


def _longest(prompts: NDArray[Any]) -> int:
    return max(map(len, texts_of(prompts)), default=0)


_SHORT_ENOUGH = Rule(
    f"at most {MAX_PROMPT_CHARACTERS} characters",
    lambda texts: _longest(texts) <= MAX_PROMPT_CHARACTERS,
    lambda _: "a shorter text",
    "",
    format_value=lambda texts: f"{_longest(texts)} characters",
)
_PROMPTS = Array("text", (BATCH, 1), "prompts, UTF-8", extra_rule=_SHORT_ENOUGH)
_MASK = Array("int64", (BATCH, "tokens"), "1 for a prompt's own tokens, 0 for padding")


@dataclass(frozen=True)
class TokenIds(Event):
    """Prompts as token ids.

    Attributes:
        input_ids: Token ids, [batch, tokens], int64, padded to the longest prompt of the request.
        attention_mask: Mask, [batch, tokens], int64: 1 for a prompt's own tokens, 0 for padding.
    """

    input_ids: Annotated[NDArray[np.int64], Array("int64", (BATCH, "tokens"), "token ids")]
    attention_mask: Annotated[NDArray[np.int64], _MASK]


@dataclass(frozen=True)
class PromptEmbeds(Event):
    """Embeddings of prompts, the text input of a denoiser.

    Attributes:
        prompt_embeds: Embeddings, [batch, tokens, width], float32; rows beyond a prompt's own tokens have no
            meaning.
        attention_mask: Mask, [batch, tokens], int64: 1 for a prompt's own tokens, 0 for padding.
    """

    prompt_embeds: Annotated[
        NDArray[np.float32], Array("float32", (BATCH, "tokens", "width"), "output of the text encoder")
    ]
    attention_mask: Annotated[NDArray[np.int64], _MASK]


@dataclass(frozen=True)
class PromptRequest(Request):
    """Prompts for a tokenizer, or for a model that returns embeddings.

    Attributes:
        prompt: Prompts, [batch, 1], UTF-8, each of at most 16,384 characters.
    """

    model: ClassVar[str] = "prompt"
    events: ClassVar[tuple[type[Event], ...]] = (TokenIds,)
    streams: ClassVar[bool] = False

    prompt: Annotated[NDArray[Any], _PROMPTS]
