"""The names of wake words: the one rule that they keep, and the served models that carry them.

A word's name becomes a folder, a model and a path of an address, so it is checked before any of these is
made of it. Nothing heavy is imported: the export, the server and the client all read the rule here.
"""

from __future__ import annotations

import re

from slipway_serving.errors import InvalidRequest

BACKBONE = "wakeword_backbone"
HEAD_PREFIX = "wakeword_head_"
FUSED_SUFFIX = "_fused"
WORD_RULE = "1 to 64 of a-z, 0-9, _ and -, begin with a letter or digit and not end in _fused"
_WORD = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SHOWN_CHARACTERS = 80


def is_word(name: str) -> bool:
    """Whether a text may be the name of a wake word."""
    return _WORD.fullmatch(name) is not None and not name.endswith(FUSED_SUFFIX)


def check_word(name: str, where: str) -> str:
    """Return a wake word's name.

    Args:
        name: of the word.
        where: the model or command that was asked, for the message.

    Raises:
        InvalidRequest: the name breaks the rule.
    """
    if not is_word(name):
        raise InvalidRequest(f"{where}: word must be {WORD_RULE}, got {shown_word(name)}; try hey_jarvis")
    return name


def shown_word(name: str) -> str:
    """Return a name as messages show it, shortened."""
    return repr(name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}...")


def head_model(word: str) -> str:
    """Return the served model of a word's head."""
    return HEAD_PREFIX + word


def word_of(model: str) -> str | None:
    """Return the word whose head a served model is; None for every other model."""
    word = model.removeprefix(HEAD_PREFIX)
    return word if word != model and is_word(word) else None
