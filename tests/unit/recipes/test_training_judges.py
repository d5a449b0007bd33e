"""Who reads from the frames of a world whether it obeyed its keys."""

from __future__ import annotations

import numpy as np
import pytest

from slipway_loadtests.pictures.plays import (
    CELL_PX,
    WORLDS,
    Play,
    Step,
    play_of,
    random_play,
)
from slipway_recipes.judges.worlds import obeyed, pose_of, slide_px, verdicts
from slipway_serving.families.matrix_game.keys import actions_of


def played(mode: str, *keys: str) -> Play:
    return play_of(np.random.default_rng(3), mode, [actions_of(held, mode) for held in keys])


@pytest.mark.parametrize("mode", list(WORLDS))
def test_judge_reads_renders_as_obeyed_and_other_keys_as_not(mode: str) -> None:
    random = np.random.default_rng(11)
    plays = [random_play(random, mode, 4) for _ in range(4)]
    read = [verdict for play in plays for verdict in verdicts(play.frames(), mode, play.steps())]
    assert obeyed(read) >= 0.9
    others = [*plays[1:], plays[0]]
    crossed = [
        verdict
        for play, other in zip(plays, others, strict=True)
        for verdict in verdicts(play.frames(), mode, other.steps())
    ]
    assert obeyed(crossed) < 0.5


def test_judge_reads_slides_and_poses() -> None:
    frames = played("universal", "d").frames()
    assert slide_px(frames[0], frames[4]) == (0, CELL_PX)
    for key, pose in (("w", "jumps"), ("s", "slides"), ("q", "stands")):
        assert pose_of(played("templerun", key).frames()[-1], "templerun", Step((0, 0), (-1, 0))) == pose
