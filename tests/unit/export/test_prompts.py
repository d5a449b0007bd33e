"""Token ids that text encoders are verified with."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slipway_export.verification.prompts import TEXTS, prompt_ids


def test_ids_are_those_of_prompts_in_any_shape(checkpoint: Path) -> None:
    from transformers import AutoTokenizer

    folder = checkpoint / "tokenizer"
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    own = tokenizer(TEXTS[0])["input_ids"]
    ids = prompt_ids(folder, (len(TEXTS) + 1, 512))
    assert ids[0, : len(own) - 1].tolist() == own[:-1]
    # Each row ends as a text does, and none is the same.
    assert np.all(ids[:, -1] == tokenizer.eos_token_id)
    assert len({row.tobytes() for row in ids}) == len(TEXTS) + 1
    assert prompt_ids(folder, (2, 1)).tolist() == [[tokenizer.eos_token_id]] * 2
    assert prompt_ids(folder, (2, 9)).shape == (2, 9)
