"""Worlds that slide under whoever walks in them."""

from __future__ import annotations

import numpy as np
import pytest

from slipway_loadtests.pictures.plays import (
    CELL_PX,
    HEIGHT_PX,
    SPRITE_PX,
    WIDTH_PX,
    Play,
    frames_of,
    play_of,
    random_play,
)
from slipway_serving.families.matrix_game.keys import VOCABULARIES, actions_of

# Of each mode's keys: cells down and to the right that the view slides in a latent frame.
SLIDES = {
    "universal": {
        "w": (-1, 0), "s": (1, 0), "a": (0, -1), "d": (0, 1), "i": (-1, 0), "k": (1, 0), "j": (0, -1),
        "l": (0, 1), "q": (0, 0),
    },
    "gta_drive": {"w": (-1, 0), "s": (1, 0), "a": (0, -1), "d": (0, 1), "q": (0, 0)},
    "templerun": {
        "q": (-1, 0), "w": (-1, 0), "s": (-1, 0), "z": (0, -1), "c": (0, 1), "a": (-1, -1), "d": (-1, 1),
    },
}  # fmt: skip
KEYS = [(mode, key) for mode, keys in SLIDES.items() for key in keys]


def played(mode: str, *keys: str) -> Play:
    return play_of(np.random.default_rng(3), mode, [actions_of(held, mode) for held in keys])


def test_every_key_of_every_mode_has_its_slide() -> None:
    assert {mode: set(keys) for mode, keys in SLIDES.items()} == {
        mode: set(known.keys) for mode, known in VOCABULARIES.items()
    }


@pytest.mark.parametrize(("mode", "key"), KEYS)
def test_the_view_slides_as_a_key_says_from_its_blocks_first_frame(mode: str, key: str) -> None:
    play = played(mode, key, key)
    assert [step.slide for step in play.steps()] == [SLIDES[mode][key]] * 5
    frames = play.frames()
    assert frames.shape == (frames_of(6), HEIGHT_PX, WIDTH_PX, 3)
    down, right = (CELL_PX // 4 * cells for cells in SLIDES[mode][key])
    # The ground beside who is in the middle, of one frame and of the next.
    side = (WIDTH_PX - SPRITE_PX) // 2 - CELL_PX
    before, after = frames[0, 8:-8, 8:side], frames[1]
    assert (before == after[8 - down : HEIGHT_PX - 8 - down, 8 - right : side - right]).all()


def test_keys_held_together_add_up_and_keys_against_the_mouse_stand_still() -> None:
    assert [step.slide for step in played("universal", "(wl)".strip("()")).steps()] == [(-1, 1)] * 2
    assert [step.slide for step in played("universal", "wk").steps()] == [(0, 0)] * 2
    assert [step.slide for step in played("universal", "wi").steps()] == [(-1, 0)] * 2


def test_who_walks_goes_on_looking_where_it_went() -> None:
    assert [step.facing for step in played("universal", "d", "q").steps()] == [(0, 1)] * 5


def test_a_play_is_the_same_of_the_same_seed() -> None:
    first, again = (random_play(np.random.default_rng(7), "gta_drive", 3).frames() for _ in range(2))
    assert (first == again).all()
    assert (first != random_play(np.random.default_rng(8), "gta_drive", 3).frames()).any()
