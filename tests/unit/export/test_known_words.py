"""The words that a checkpoint says it knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.known_words import FILE, known_words, write_known_words
from slipway_export.checkpoint.note import FILE as NOTE_FILE
from slipway_export.checkpoint.note import checkpoint_note
from slipway_export.families.wan_t2v.presets import EXAMPLE_FILE
from slipway_loadtests.pictures import captions
from slipway_loadtests.pictures.scenes import subjects
from slipway_serving.protocol.errors import InvalidRequest

DEMO = Path(__file__).parents[3] / "training" / "slipway_demo"


def test_words_are_those_of_the_file_and_none_without_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "c")
    assert known_words(checkpoint) == {}
    write_known_words(tmp_path, {"prompt": ("red", "ball")})
    assert known_words(checkpoint) == {"prompt": ["red", "ball"]}


def test_note_is_the_text_of_its_file_and_empty_without_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "c")
    assert checkpoint_note(checkpoint) == ""
    (tmp_path / NOTE_FILE).write_text("It knows é.\n", encoding="utf-8")
    assert checkpoint_note(checkpoint) == "It knows é."


def test_demo_says_what_it_does_badly() -> None:
    assert "edge" in checkpoint_note(Checkpoint(DEMO / "matrix_game", "demo"))
    assert "corners" in checkpoint_note(Checkpoint(DEMO / "framepack_i2v", "demo"))


@pytest.mark.parametrize("words", ["red", ["red ball"], [""], [3], {"red": 1}])
def test_file_is_refused_when_it_has_no_words(tmp_path: Path, words: Any) -> None:
    (tmp_path / FILE).write_text(json.dumps({"prompt": words}))
    with pytest.raises(InvalidRequest, match="prompt must be a list of words without spaces, got"):
        known_words(Checkpoint(tmp_path, "c"))


@pytest.mark.parametrize("family", ["wan_t2v", "framepack_i2v"])
def test_demo_knows_every_word_of_its_captions(family: str) -> None:
    words = {*known_words(Checkpoint(DEMO / family, "demo"))["prompt"]}
    assert words == {*captions.known_words()}
    said = " ".join([*captions.examples(), *(captions.plain(each) for each in subjects(unseen=True))])
    assert {*said.replace(",", " ").replace(".", " ").split()} == words


def test_example_of_the_demo_has_known_words_only() -> None:
    example = (DEMO / "wan_t2v" / EXAMPLE_FILE).read_text(encoding="utf-8")
    assert {*example.split()} <= {*known_words(Checkpoint(DEMO / "wan_t2v", "demo"))["prompt"]}
