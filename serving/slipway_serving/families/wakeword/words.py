"""Names of wake words: the rule that they must meet, and the names of their served models.

A word's name becomes part of a folder, a model and a URL path, so it is checked before that. This module
imports nothing heavy, because the export, the server and the client all use it.
"""

from __future__ import annotations

import re

from slipway_serving.protocol.errors import InvalidRequest

BACKBONE = "wakeword_backbone"
HEAD_PREFIX = "wakeword_head_"
FUSED_SUFFIX = "_fused"
WORD_RULE = "1 to 64 characters a-z, 0-9, _ and -, beginning with a letter or digit and not ending in _fused"
_WORD = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SHOWN_CHARACTERS = 80


def is_word(name: str) -> bool:
    """Return True if a text may be the name of a wake word."""
    return _WORD.fullmatch(name) is not None and not name.endswith(FUSED_SUFFIX)


def check_word(name: str, where: str) -> str:
    """Check a wake word's name and return it.

    Args:
        name: Name of the word.
        where: Name of the called model or command, for the message.

    Raises:
        InvalidRequest: The name breaks the rule.
    """
    if not is_word(name):
        raise InvalidRequest(f"{where}: word must be {WORD_RULE}, got {quoted_word(name)}; try {like(name)}")
    return name


def like(name: str) -> str:
    """Return the name that a wake word may have instead, made from its text: ``hey_computer``."""
    made = re.sub(r"[^a-z0-9_-]+", "_", name.lower()).strip("_-")[:64]
    return made if is_word(made) else "hey_jarvis"


def quoted_word(name: str) -> str:
    """Return a name as messages show it, quoted and shortened."""
    return repr(name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}...")


def head_model(word: str) -> str:
    """Return the name of the served model of a word's head."""
    return HEAD_PREFIX + word


def word_of(model: str) -> str | None:
    """Return the word of a head's served model, or None for any other model."""
    word = model.removeprefix(HEAD_PREFIX)
    return word if word != model and is_word(word) else None
