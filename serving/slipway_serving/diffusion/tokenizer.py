"""The program of a tokenizer: prompts as text in, token ids out, cleaned as diffusers cleans them.

Text that is not UTF-8, has a NUL or is too long is refused rather than truncated: what the caller wrote is
what the model sees.
"""

from __future__ import annotations

import html
import re

import ftfy
import numpy as np
from transformers import AutoTokenizer

from slipway_serving.diffusion.requests import PromptRequest, TokenIds, texts_of
from slipway_serving.errors import InvalidRequest, raise_all
from slipway_serving.events import tensors
from slipway_serving.program import Call, Responses, Settings
from slipway_serving.requests import decode


def clean(text: str) -> str:
    """Repair encoding accidents, unescape HTML (twice: "&amp;lt;" is common) and collapse white space."""
    return re.sub(r"\s+", " ", html.unescape(html.unescape(ftfy.fix_text(text)))).strip()


class PromptTokenizer:
    """Tokenizes with the checkpoint's own tokenizer, which lies beside the model in ``tokenizer/``.

    Takes a :class:`PromptRequest` of at most so many tokens as the config's ``max_tokens`` says, and answers
    with :class:`TokenIds`.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._max_tokens = settings.positive("max_tokens")
        folder = settings.folder / "tokenizer"
        if not folder.is_dir():
            raise InvalidRequest(
                f"{self._model}: the tokenizer must lie in {folder}, got nothing; try exporting"
            )
        self._tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)

    def run(self, call: Call) -> Responses:
        """Yield the token ids of the call's prompts.

        Raises:
            InvalidRequest: a prompt is no text or too long, or naming every one that has too many tokens.
        """
        prompts = decode(PromptRequest, call.tensors, self._model).prompt
        texts = [clean(prompt) for prompt in texts_of(prompts)]
        tokens = self._tokenizer(texts, padding=True, truncation=False, return_tensors="np")
        raise_all(
            self._model,
            [
                f"prompt must be at most {self._max_tokens} tokens, got {count}; try a shorter text"
                for count in tokens["attention_mask"].sum(axis=1)
                if count > self._max_tokens
            ],
        )
        ids, mask = (tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask"))
        yield tensors(TokenIds(ids, mask))

    def close(self) -> None:
        """Nothing is held."""
