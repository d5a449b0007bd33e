"""The program of the tokenizer: a prompt in, ids for LLaMA and for CLIP out, as HunyuanVideo has them.

LLaMA reads the prompt in a template that asks for the description of a video; a prompt that leaves it too few
tokens is refused. CLIP reads the prompt alone, and of a longer one its first tokens: it gives one vector of
the whole, and LLaMA has every word.
"""

from __future__ import annotations

import numpy as np
from transformers import AutoTokenizer

from slipway_serving.errors import InvalidRequest
from slipway_serving.events import tensors
from slipway_serving.framepack_i2v.facts import Facts
from slipway_serving.framepack_i2v.request import PromptTokens, TokensRequest
from slipway_serving.program import Call, Responses, Settings
from slipway_serving.requests import decode


class Tokenizer:
    """Tokenizes with the checkpoint's own tokenizers, which lie beside the model.

    Takes a :class:`TokensRequest` and answers with :class:`PromptTokens`.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        facts = Facts.read(settings.folder)
        self._prompt = facts.prompt
        # More than the transformer's graph takes would be tokenized for nothing.
        self._most = min(facts.prompt.tokens, facts.axes["text_tokens"][2])
        self._llama, self._clip = (
            AutoTokenizer.from_pretrained(str(settings.folder / name), local_files_only=True)
            for name in ("tokenizer", "tokenizer_2")
        )

    def run(self, call: Call) -> Responses:
        """Yield the ids of the call's prompt.

        Raises:
            InvalidRequest: the prompt is no text, empty, or has too many tokens.
        """
        prompt = decode(TokensRequest, call.tensors, self._model).prompt
        llama = self._llama(self._prompt.template.replace("{}", prompt), return_tensors="np")["input_ids"]
        count = llama.shape[1] - self._prompt.crop_start
        if count > self._most:
            raise InvalidRequest(
                f"{self._model}: prompt must be at most {self._most} tokens with those that end it, got"
                f" {count}; try a shorter text"
            )
        clip = self._clip(
            prompt,
            padding="max_length",
            max_length=self._prompt.clip_tokens,
            truncation=True,
            return_tensors="np",
        )["input_ids"]
        yield tensors(PromptTokens(llama.astype(np.int64), clip.astype(np.int64)))

    def close(self) -> None:
        """Nothing is held."""
