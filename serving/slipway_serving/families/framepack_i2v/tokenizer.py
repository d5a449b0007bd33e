"""Tokenizer program: converts a prompt to ids for LLaMA and for CLIP, as in HunyuanVideo.

LLaMA gets the prompt within a template that asks for the description of a video; a prompt with too many
tokens is refused. CLIP gets the prompt alone, and only the first tokens of a long one: it contributes one
vector for the whole prompt, while LLaMA reads every word.
"""

from __future__ import annotations

import numpy as np
from transformers import AutoTokenizer

from slipway_serving.diffusion.tokenizer import cased
from slipway_serving.families.framepack_i2v.facts import Facts
from slipway_serving.families.framepack_i2v.request import PromptTokens, TokensRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import tensors
from slipway_serving.protocol.requests import decode
from slipway_serving.runtime.program import Call, Responses, Settings


class Tokenizer:
    """Program that answers a :class:`TokensRequest` with :class:`PromptTokens`.

    It uses the checkpoint's own tokenizers, which are in the model's folder.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        facts = Facts.read(settings.folder)
        self._prompt = facts.prompt
        # The transformer's graph would refuse more tokens.
        self._most = min(facts.prompt.tokens, facts.axes["text_tokens"][2])
        self._llama, self._clip = (
            AutoTokenizer.from_pretrained(str(settings.folder / name), local_files_only=True)
            for name in ("tokenizer", "tokenizer_2")
        )

    def run(self, call: Call) -> Responses:
        """Yield the ids of the call's prompt.

        Raises:
            InvalidRequest: The prompt is not text, is empty, or has too many tokens.
        """
        prompt = decode(TokensRequest, call.tensors, self._model).prompt
        told = self._prompt.template.replace("{}", cased(self._llama, prompt))
        llama = self._llama(told, return_tensors="np")["input_ids"]
        count = llama.shape[1] - self._prompt.crop_start
        if count > self._most:
            raise InvalidRequest(
                f"{self._model}: prompt must be at most {self._most} tokens, end tokens included, got"
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
        """Do nothing; the program holds no resources."""
