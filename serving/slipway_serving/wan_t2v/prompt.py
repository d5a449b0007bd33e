"""The program wan_t2v_tokenizer: prompts as text in, token ids out, cleaned as diffusers cleans them.

Text that is not UTF-8, has a NUL or is too long is refused rather than truncated: what the caller wrote is
what the model sees.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

import ftfy
import numpy as np
from transformers import AutoTokenizer

from slipway_serving.errors import InvalidRequest, SlipwayError, raise_all
from slipway_serving.program import Call, Responses, Settings
from slipway_serving.requests import Request, decode
from slipway_serving.wan_t2v.request import PROMPT_RULE


@dataclass(frozen=True)
class PromptRequest(Request):
    """One prompt.

    Attributes:
        prompt: text of at most 16,384 characters.
    """

    model: ClassVar[str] = "wan_t2v_tokenizer"

    prompt: Annotated[str, PROMPT_RULE]


def clean(text: str) -> str:
    """Repair encoding accidents, unescape HTML (twice: "&amp;lt;" is common) and collapse white space."""
    return re.sub(r"\s+", " ", html.unescape(html.unescape(ftfy.fix_text(text)))).strip()


class PromptTokenizer:
    """Tokenizes with the checkpoint's own tokenizer, which lies beside the model in ``tokenizer/``.

    Input ``prompt`` [batch, 1], BYTES; outputs ``input_ids`` and ``attention_mask`` [batch, tokens], int64,
    padded to the longest prompt of the request.
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
            InvalidRequest: naming every prompt that is no text or has too many tokens.
        """
        texts, problems = [], []
        for row in call.tensors["prompt"]:
            try:
                texts.append(clean(decode(PromptRequest, {"prompt": row}, self._model).prompt))
            except SlipwayError as error:
                problems.append(str(error).removeprefix(f"{self._model}: "))
        raise_all(self._model, problems)
        tokens = self._tokenizer(texts, padding=True, truncation=False, return_tensors="np")
        counts = tokens["attention_mask"].sum(axis=1)
        raise_all(
            self._model,
            [
                f"prompt must be at most {self._max_tokens} tokens, got {count}; try a shorter text"
                for count in counts
                if count > self._max_tokens
            ],
        )
        yield {name: tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask")}

    def close(self) -> None:
        """Nothing is held."""
