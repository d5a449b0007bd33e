"""Words that a checkpoint knows, for checkpoints that know few.

The file ``known_words.json`` of a checkpoint has a list of words for each text field of a request. The export
writes them into the configuration of the served model, and a form shows them beside the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.texts import short

FILE = "known_words.json"


def known_words(checkpoint: Checkpoint) -> dict[str, Sequence[str]]:
    """Return the words that a checkpoint knows, by field; none for a checkpoint without the file.

    Raises:
        InvalidRequest: The file is not an object of lists of words.
    """
    if not checkpoint.has(FILE):
        return {}
    found: dict[str, Sequence[str]] = {}
    for name, words in checkpoint.config(FILE).items():
        if not isinstance(words, list) or not all(
            isinstance(each, str) and each.split() == [each] for each in words
        ):
            raise InvalidRequest(
                f"{checkpoint.where(FILE)}: {FILE}: {name} must be a list of words without spaces, got"
                f" {short(words)}"
            )
        found[name] = words
    return found


def write_known_words(folder: Path, words: Mapping[str, Sequence[str]]) -> None:
    """Write the words that a checkpoint knows into its folder."""
    text = json.dumps({name: list(known) for name, known in words.items()}, indent=1)
    (folder / FILE).write_text(f"{text}\n", encoding="utf-8")
