"""The pieces of clips that a step of a VAE's training sees."""

from __future__ import annotations

import numpy as np

from slipway_loadtests.pictures.footage import SIDE_PX
from slipway_loadtests.pictures.scenes import (
    subjects,
)
from slipway_recipes.wan_t2v.footage import pictures, pieces

SEEN = subjects(unseen=False)


def test_clips_of_a_step_are_the_same_from_the_same_seed() -> None:
    first, again = (pieces(np.random.default_rng([3, 5]), 5, SEEN) for _ in range(2))
    assert (first == again).all()
    assert not (pieces(np.random.default_rng([4, 5]), 5, SEEN) == first).all()
    assert pieces(np.random.default_rng(0), 4, SEEN).shape[1:] == (17, SIDE_PX, SIDE_PX, 3)
    assert pictures(np.random.default_rng(0), SEEN).shape[1] == 1
