"""The names of wake words: what is one, and what could lead out of a folder."""

from __future__ import annotations

import pytest

from slipway_serving.families.wakeword.words import check_word, head_model, is_word, word_of
from slipway_serving.protocol.errors import InvalidRequest


@pytest.mark.parametrize("name", ["jarvis", "hey_jarvis", "ok-7", "0", "a" * 64])
def test_name_is_a_word(name: str) -> None:
    assert check_word(name, "wakeword") == name
    assert word_of(head_model(name)) == name


BAD = ["", "Jarvis", "hey jarvis", "../x", "/etc", "a/b", "a\\b", ".", "..", "_x", "-x", "a" * 65, "a.b"]
MEAN = ["jarvis\n", "jarvis\0", "jårvis", "\u0661", "a\u202eb", "jarvis_fused"]


@pytest.mark.parametrize("name", BAD + MEAN)
def test_name_is_refused_when_it_breaks_the_rule(name: str) -> None:
    assert not is_word(name)
    with pytest.raises(InvalidRequest, match="wakeword: word must be 1 to 64 characters a-z"):
        check_word(name, "wakeword")


def test_message_stays_short_when_the_name_is_long() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_word("x" * 1_000_000, "wakeword")
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "model", ["wakeword", "wakeword_backbone", "wakeword_head_", "wakeword_head_x_fused", "x"]
)
def test_other_models_are_no_words(model: str) -> None:
    assert word_of(model) is None
