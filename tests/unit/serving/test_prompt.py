"""Prompts to a denoiser's text input: padding, and whose error it is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway_serving.diffusion.prompt import encode_masked_prompts, encode_prompts, pad_rows
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.program import Tensors

NOBODY = Interruption("world", lambda: False)


class Encoder(InProcessModels):
    """Embeds each character as itself, and pads with something that must not be seen."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, Any]:
        text = tensors["prompt"][0, 0]
        if text == b"bad":
            raise InvalidRequest(f"{model}: prompt must be good")
        rows = np.array([*text, 255, 255], np.float32)[None, :, None].repeat(2, axis=2)
        rows[rows == ord("?")] = np.nan
        mask = np.array([[1] * len(text) + [0, 0]], np.int64)
        return {"prompt_embeds": rows, "attention_mask": mask}


def encode(**texts: str) -> Any:
    return encode_prompts(texts, "encoder", 6, Encoder(), NOBODY, "world")


def test_prompts_are_stacked_with_zeros_beyond_their_own_tokens() -> None:
    found = encode(prompt="abc", negative_prompt="")
    assert found.shape == (2, 6, 2)
    assert found[0, :, 0].tolist() == [97, 98, 99, 0, 0, 0]
    assert not found[1].any()


def test_mask_covers_the_tokens_of_each_prompt() -> None:
    texts = {"prompt": "abc", "negative_prompt": "", "long": "abcdef"}
    found = encode_masked_prompts(texts, "encoder", 6, Encoder(), NOBODY, "world")
    assert found.mask.sum(axis=1).tolist() == [3, 0, 6]
    assert found.mask[0].tolist() == [True, True, True, False, False, False]
    assert np.array_equal(found.embeds, encode(**texts))


def test_padding_keeps_a_prompt_that_fills_all_rows() -> None:
    embeds = np.ones((4, 2), np.float32)
    assert np.array_equal(pad_rows(embeds, 4, 4), embeds)


def test_refusal_names_the_field() -> None:
    with pytest.raises(InvalidRequest, match="^world: negative_prompt: encoder: prompt must be good"):
        encode(prompt="a", negative_prompt="bad")


def test_embeddings_that_are_not_finite_are_an_error_of_the_server() -> None:
    with pytest.raises(
        Unrecoverable, match="world: the embeddings of prompt must be finite, .* from encoder"
    ):
        encode(prompt="a?")
