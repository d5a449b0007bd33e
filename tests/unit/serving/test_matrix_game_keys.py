"""Keys that steer a world, and scripts of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_export.families.matrix_game.causal_wan.inference import MODES
from slipway_serving.families.matrix_game.keys import VOCABULARIES, actions_of, parse_script
from slipway_serving.protocol.errors import InvalidRequest


def test_vocabularies_are_those_of_the_modes_when_compared_with_the_networks() -> None:
    assert {name: (v.keyboard, v.mouse) for name, v in VOCABULARIES.items()} == {
        name: (mode.keyboard, mode.mouse) for name, mode in MODES.items()
    }


@pytest.mark.parametrize(
    ("mode", "held", "keyboard", "mouse"),
    [
        ("universal", "w", [1, 0, 0, 0], [0, 0]),
        ("universal", "wa", [1, 0, 1, 0], [0, 0]),
        ("universal", "dil", [0, 0, 0, 1], [0.1, 0.1]),
        ("universal", "kj", [0, 0, 0, 0], [-0.1, -0.1]),
        ("universal", "", [0, 0, 0, 0], [0, 0]),
        ("gta_drive", "wa", [1, 0], [0, -0.1]),
        ("gta_drive", "sd", [0, 1], [0, 0.1]),
        ("templerun", "", [1, 0, 0, 0, 0, 0, 0], None),
        ("templerun", "d", [0, 0, 0, 0, 0, 0, 1], None),
    ],
)
def test_actions_are_upstreams_when_keys_are_held(
    mode: str, held: str, keyboard: list[int], mouse: list[float] | None
) -> None:
    wanted = {"keyboard_cond": keyboard} | ({} if mouse is None else {"mouse_cond": mouse})
    found = actions_of(held, mode)
    assert found.keys() == wanted.keys()
    for name, row in wanted.items():
        np.testing.assert_array_equal(found[name], np.array([row], np.float32))
        assert found[name].dtype == np.float32


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("wwaaddss", list("wwaaddss")),
        ("w (wl)*3\nq*2 # then rest\n( s j )", ["w", "wl", "wl", "wl", "q", "q", "sj"]),
        ("()w", ["", "w"]),
    ],
)
def test_script_is_a_block_for_each_word_when_it_is_read(text: str, blocks: list[str]) -> None:
    assert parse_script(text, "universal") == blocks


@pytest.mark.parametrize(
    ("mode", "text", "message"),
    [
        ("universal", "wx", r"block 2 must be keys of universal \(w forward, .*\), got 'x'"),
        ("gta_drive", "j", r"block 1 must be keys of gta_drive .*, got 'j'"),
        ("universal", "w(ws)", r"block 2 must not hold w \(forward\) together with s \(back\), got \(ws\)"),
        ("templerun", "(wq)", r"must not hold w \(jump\) together with q \(no move\)"),
        ("universal", "(ww)", r"block 1 must hold each key once, got \(ww\)"),
        ("universal", "w(a", r"got '\(a' at character 2"),
        ("universal", "*3", r"got '\*3' at character 1"),
        ("universal", "w*0", r"must repeat keys 1 time or more, got w\*0"),
        ("universal", "w*100001", r"at most 100,000 blocks"),
        ("universal", f"w*{'9' * 5000}", r"at most 100,000 blocks|at character"),
        ("universal", " # nothing", r"must have at least one block, got ' # nothing'; keys are w forward"),
        ("flying", "w", r"mode must be one of universal, gta_drive, templerun, got 'flying'"),
    ],
)
def test_script_is_refused_with_its_block_when_it_is_wrong(mode: str, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_script(text, mode)


@given(st.text(alphabet="wasdikjlq()*# \n0123", max_size=40), st.sampled_from(sorted(VOCABULARIES)))
def test_script_gives_blocks_that_steer_or_an_error_when_it_is_any_text(text: str, mode: str) -> None:
    try:
        blocks = parse_script(text, mode)
    except InvalidRequest:
        return
    assert blocks
    for held in set(blocks):
        assert np.isin(actions_of(held, mode)["keyboard_cond"], (0, 1)).all()
