"""Program of a tokenizer: it cleans prompts like diffusers and returns their token ids.

It refuses text that is not UTF-8, has a NUL or is too long, rather than truncate it, so that the model sees
what the caller wrote.
"""

from __future__ import annotations

import html
import re

import ftfy
import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from slipway_serving.protocol.diffusion.requests import PromptRequest, TokenIds, texts_of
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.protocol.events import tensors
from slipway_serving.protocol.requests import decode
from slipway_serving.runtime.program import Call, Responses, Settings


def clean(text: str) -> str:
    """Repair encoding accidents, unescape HTML (twice: "&amp;lt;" is common) and collapse white space."""
    return re.sub(r"\s+", " ", html.unescape(html.unescape(ftfy.fix_text(text)))).strip()


def cased(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Return a text in lower case if the checkpoint's tokenizer has no other case, else unchanged.

    ``do_lower_case`` in `tokenizer_config.json` says so. Not every tokenizer of transformers applies it.
    """
    return text.lower() if tokenizer.init_kwargs.get("do_lower_case") is True else text


class PromptTokenizer:
    """Tokenizer of the checkpoint, loaded from the folder ``tokenizer/`` of the model.

    It takes a :class:`PromptRequest` and returns :class:`TokenIds`. The config's ``max_tokens`` bounds the
    tokens of each prompt.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._max_tokens = settings.positive_integer("max_tokens")
        folder = settings.folder / "tokenizer"
        if not folder.is_dir():
            raise InvalidRequest(
                f"{self._model}: {folder} must be the tokenizer's folder, got nothing; try exporting again"
            )
        self._tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)

    def run(self, call: Call) -> Responses:
        """Yield the token ids of the call's prompts.

        Raises:
            InvalidRequest: A prompt is not text, is too long or has too many tokens; the message has a line
                for each prompt with too many tokens.
        """
        prompts = decode(PromptRequest, call.tensors, self._model).prompt
        texts = [cased(self._tokenizer, clean(prompt)) for prompt in texts_of(prompts)]
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
        """Do nothing: a tokenizer has nothing to free."""
