"""The world of shapes: what training sees and never sees, what a clip shows, what a caption says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from slipway_loadtests.pictures.captions import caption, examples, plain
from slipway_loadtests.pictures.footage import FRAMES, SIDE_PX
from slipway_loadtests.pictures.render import render
from slipway_loadtests.pictures.scenes import (
    COLOURS,
    GROUNDS,
    MOTIONS,
    ROUND,
    SHAPES,
    Scene,
    Subject,
    random_scene,
    subjects,
)

SEEN, UNSEEN = subjects(unseen=False), subjects(unseen=True)


def scene_of(motion: str, shape: str = "square", seed: int = 0) -> Scene:
    return random_scene(np.random.default_rng(seed), [Subject("red", shape, motion, "asphalt")], FRAMES)


def covered(scene: Scene, frames: range = range(FRAMES)) -> NDArray[np.bool_]:
    """Return which pixels are the shape's: red before asphalt."""
    clip = render(scene, frames, SIDE_PX).astype(int)
    found: NDArray[np.bool_] = clip[..., 0] - clip[..., 1] > 90
    return found


def centres(scene: Scene) -> NDArray[np.float64]:
    """Return the centre of the shape in each frame, [frames, (x, y)], in shares of the side."""
    found = [[places.mean() / SIDE_PX for places in np.nonzero(mask)[::-1]] for mask in covered(scene)]
    return np.array(found)


def test_unseen_subjects_are_new_only_as_a_whole() -> None:
    assert not {(s.colour, s.shape, s.motion) for s in SEEN} & {(s.colour, s.shape, s.motion) for s in UNSEEN}
    for one, other in (("colour", "shape"), ("colour", "motion"), ("shape", "motion")):
        seen, unseen = ({(getattr(s, one), getattr(s, other)) for s in part} for part in (SEEN, UNSEEN))
        assert unseen <= seen, (one, other)
    assert 0.1 < len(UNSEEN) / len(SEEN + UNSEEN) < 0.15
    for words, field in ((COLOURS, "colour"), (SHAPES, "shape"), (MOTIONS, "motion"), (GROUNDS, "ground")):
        assert {getattr(subject, field) for subject in UNSEEN} == set(words), field


def test_round_shapes_never_turn_where_nobody_could_see_it() -> None:
    assert not [subject for subject in SEEN + UNSEEN if subject.motion == "turns" and subject.shape in ROUND]


@pytest.mark.parametrize(
    ("motion", "axis", "sign"),
    [
        ("moves to the right", 0, 1),
        ("bounces to the left", 0, -1),
        ("moves up", 1, -1),
        ("moves down", 1, 1),
    ],
)
def test_shape_goes_where_its_motion_says(motion: str, axis: int, sign: int) -> None:
    for seed in range(8):
        way = centres(scene_of(motion, seed=seed))
        assert sign * (way[-1] - way[0])[axis] > 0.35, seed
        assert (sign * np.diff(way[:, axis]) > -0.01).all(), seed


def test_bounce_comes_down_again_between_its_hops() -> None:
    height = centres(scene_of("bounces to the right"))[:, 1]
    landed = [t for t in range(1, FRAMES - 1) if height[t - 1] < height[t] >= height[t + 1]]
    assert len(landed) >= 2
    assert height.max() - height.min() > 0.15


def test_growing_and_shrinking_shapes_change_their_size_and_stay() -> None:
    sizes = {motion: covered(scene_of(motion)).sum(axis=(1, 2)) for motion in ("grows", "shrinks")}
    assert sizes["grows"][-1] > 4 * sizes["grows"][0]
    assert sizes["shrinks"][0] > 4 * sizes["shrinks"][-1]
    assert np.abs(np.ptp(centres(scene_of("grows")), axis=0)).max() < 0.03


def test_turning_shape_changes_its_outline_but_not_its_place() -> None:
    masks = covered(scene_of("turns"))
    assert (masks[0] != masks[8]).sum() > 0.05 * masks[0].sum()
    assert np.ptp(centres(scene_of("turns")), axis=0).max() < 0.03


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_is_the_same_however_far_its_scene_is_moved(shape: str) -> None:
    scene = replace(
        scene_of("turns" if shape not in ROUND else "grows", shape), spin_rad=0.0, sizes=(1.0, 0.0)
    )
    one = covered(replace(scene, start=(0.4, 0.4)), range(1))[0]
    other = covered(replace(scene, start=(0.4 + 8 / SIDE_PX, 0.4)), range(1))[0]
    assert (np.roll(one, 8, axis=1) == other).all()
    assert bool(one[round(0.4 * SIDE_PX), round(0.4 * SIDE_PX)]) is (shape != "ring")


def test_later_part_of_a_clip_is_what_the_whole_one_shows_then() -> None:
    scene = scene_of("bounces to the left", "star")
    whole = render(scene, range(FRAMES), SIDE_PX)
    assert (render(scene, range(10, 20), SIDE_PX) == whole[10:20]).all()
    assert (render(scene, range(0, FRAMES, 4), SIDE_PX) == whole[::4]).all()


def test_captions_say_what_the_scene_is_of_in_words_that_the_tokenizer_learns() -> None:
    random = np.random.default_rng(0)
    known = set(" ".join(examples()).replace(",", "").replace(".", "").split())
    said = set()
    for place in random.integers(len(SEEN), size=400):
        subject = SEEN[place]
        text = caption(random, subject)
        assert f"{subject.colour} {subject.shape}" in text
        assert set(text.replace(",", "").split()) <= known
        said.add(text == plain(subject))
    assert said == {True, False}
    assert plain(Subject("orange", "ball", "turns", "sand")) == "an orange ball turns on sand"
