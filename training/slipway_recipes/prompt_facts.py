"""What a checkpoint says about its prompts: the words that it knows, and that it knows no capital letters."""

from __future__ import annotations

import json
from pathlib import Path

from slipway_export.checkpoint.known_words import write_known_words
from slipway_loadtests.pictures.captions import known_words


def write_prompt_facts(checkpoint: Path) -> None:
    """Write what a checkpoint of the captions says about its prompts; captions have no capital letters."""
    write_known_words(checkpoint, {"prompt": known_words()})
    path = checkpoint / "tokenizer" / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"do_lower_case": True}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
