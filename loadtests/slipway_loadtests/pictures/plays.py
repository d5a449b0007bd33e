"""Plays: the rendered frames of a world while keys are held.

The view slides over the map by whole cells of the latents. In each of a latent frame's four frames it slides
by a quarter of a cell in every direction that is held. The row of actions of the first of these frames
decides. This is also the first row of a block, so a block obeys its keys from its first frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_loadtests.pictures.lands import (
    ROAD_PX,
    Map,
    Rgb,
    box,
    disc,
    painted,
    pixels_about_middle,
    road_map,
    ruins_map,
    wild_map,
)

HEIGHT_PX, WIDTH_PX = 48, 80
CELL_PX, FRAMES_PER_LATENT, BLOCK_LATENTS = 8, 4, 3
_STEP_PX = CELL_PX // FRAMES_PER_LATENT
# Smallest movement of the mouse that counts; the mouse moves in steps of 0.1.
_MOVED = 0.05
SPRITE_PX = 24
_HELD = 0.85
Cells = tuple[int, int]
"""Offset down and to the right."""


@dataclass(frozen=True)
class Step:
    """Effect of a row of actions in one latent frame.

    Args:
        slide: Slide of the view, in cells.
        facing: Direction that the player in the middle faces; (0, 0) keeps the previous one.
        pose: Pose in which the player is drawn.
    """

    slide: Cells
    facing: Cells = (0, 0)
    pose: str = "stands"


@dataclass(frozen=True)
class World:
    """Rules and appearance of a mode's world.

    Args:
        draw_map: Function that draws a random map.
        step: Function that returns the step of a row of the keyboard and a row of the mouse.
        choices: Function that draws the held keyboard columns and the mouse movement of a training play.
        keyboard: Number of columns of the keyboard.
        colour: Colour of the player in the middle.
    """

    draw_map: Callable[[np.random.Generator], Map]
    step: Callable[[NDArray[np.float32], NDArray[np.float32]], Step]
    choices: Callable[[np.random.Generator], tuple[Sequence[int], tuple[float, float]]]
    keyboard: int
    colour: Rgb


@dataclass(frozen=True)
class Rows:
    """Actions of a play, one row for each frame.

    Args:
        keyboard: Keys, [frames, columns], 0 or 1.
        mouse: Mouse movement, [frames, 2], vertical and horizontal; zeros if the mode has no mouse.
    """

    keyboard: NDArray[np.float32]
    mouse: NDArray[np.float32]


@dataclass(frozen=True)
class Play:
    """Play that is not drawn yet.

    Args:
        mode: Mode, a key of `WORLDS`.
        map: Map of the play.
        corner: Corner of the view in the first frame, in pixels from top and left, multiples of a cell.
        facing: Direction that the player faces in the first frame.
        rows: Rows of actions, for 1 + 4 * (latent frames - 1) frames.
    """

    mode: str
    map: Map
    corner: Cells
    facing: Cells
    rows: Rows

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        return (1 + (len(self.rows.keyboard) - 1) // FRAMES_PER_LATENT) // BLOCK_LATENTS

    def steps(self) -> list[Step]:
        """Return the step of each latent frame after the first; facing is never (0, 0)."""
        world, facing, found = WORLDS[self.mode], self.facing, []
        for frame in range(1, len(self.rows.keyboard), FRAMES_PER_LATENT):
            step = world.step(self.rows.keyboard[frame], self.rows.mouse[frame])
            facing = step.facing if step.facing != (0, 0) else facing
            found.append(Step(step.slide, facing, step.pose))
        return found

    def frames(self) -> NDArray[np.uint8]:
        """Draw the frames, [frames, HEIGHT_PX, WIDTH_PX, 3], RGB."""
        top, left = self.corner
        drawn = [self._frame(top, left, Step((0, 0), self.facing))]
        for step in self.steps():
            for _ in range(FRAMES_PER_LATENT):
                top += _STEP_PX * step.slide[0]
                left += _STEP_PX * step.slide[1]
                drawn.append(self._frame(top, left, step))
        return np.stack(drawn)

    def _frame(self, top: int, left: int, step: Step) -> NDArray[np.uint8]:
        picture = self.map.view(top, left, HEIGHT_PX, WIDTH_PX).copy()
        y, x = (HEIGHT_PX - SPRITE_PX) // 2, (WIDTH_PX - SPRITE_PX) // 2
        place = picture[y : y + SPRITE_PX, x : x + SPRITE_PX]
        place[:] = drawn_on(place, self.mode, step)
        return picture


def frames_of(latents: int) -> int:
    """Return the number of frames of a number of latent frames."""
    return 1 + FRAMES_PER_LATENT * (latents - 1)


def first_row(block: int) -> int:
    """Return the index of a block's first row of actions."""
    return max(0, frames_of(BLOCK_LATENTS * block))


def random_play(random: np.random.Generator, mode: str, blocks: int) -> Play:
    """Draw a random play, in which most blocks hold their keys from start to end, as people do."""
    world = WORLDS[mode]
    latents = BLOCK_LATENTS * blocks
    keyboard = np.zeros((frames_of(latents), world.keyboard), np.float32)
    mouse = np.zeros((frames_of(latents), 2), np.float32)
    for block in range(blocks):
        first = block * BLOCK_LATENTS
        held = random.random() < _HELD
        for latent in range(first, first + BLOCK_LATENTS):
            if latent == first or not held:
                columns, look = world.choices(random)
            # In the first block the first frame also has a row, which has no visible effect.
            rows = slice(max(0, frames_of(latent)), frames_of(latent + 1))
            keyboard[rows, list(columns)], mouse[rows] = 1.0, look
    keyboard[0], mouse[0] = keyboard[1], mouse[1]
    return Play(mode, *_beginning(random, world), Rows(keyboard, mouse))


def play_of(random: np.random.Generator, mode: str, actions: Sequence[Mapping[str, Any]]) -> Play:
    """Return a play of given actions on a random map, from a random place.

    Args:
        random: Generator of map, place and facing.
        mode: Mode, a key of `WORLDS`.
        actions: Actions of each block, as `slipway_serving.families.matrix_game.keys.actions_of` returns
            them.
    """
    counts = [frames_of(BLOCK_LATENTS)] + [BLOCK_LATENTS * FRAMES_PER_LATENT] * (len(actions) - 1)
    still = np.zeros((1, 2), np.float32)
    keyboard, mouse = (
        np.concatenate(
            [
                np.repeat(each.get(name, still), count, axis=0)
                for each, count in zip(actions, counts, strict=True)
            ]
        )
        for name in ("keyboard_cond", "mouse_cond")
    )
    return Play(mode, *_beginning(random, WORLDS[mode]), Rows(keyboard, mouse))


def _beginning(random: np.random.Generator, world: World) -> tuple[Map, Cells, Cells]:
    drawn = world.draw_map(random)
    top, left = (int(CELL_PX * place) for place in random.integers(len(drawn.pixels) // CELL_PX, size=2))
    if world is WORLDS["gta_drive"]:
        left = CELL_PX * int(random.integers(-3, 4)) + ROAD_PX - WIDTH_PX // 2
    facing = _SIDES[int(random.integers(len(_SIDES)))] if world is WORLDS["universal"] else (-1, 0)
    return drawn, (top, left), facing


_SIDES: tuple[Cells, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))


def _looked(mouse: NDArray[np.float32]) -> Cells:
    """Return the direction of the mouse movement; its first value is positive for up."""
    up, right = (int(value > _MOVED) - int(value < -_MOVED) for value in mouse)
    return -up, right


def _walked(keyboard: NDArray[np.float32], mouse: NDArray[np.float32]) -> Step:
    forward, back, left, right = (int(value > 0) for value in keyboard)
    facing, look = (back - forward, right - left), _looked(mouse)
    # Keys and mouse together slide the view no faster than one of them.
    down, across = (max(-1, min(1, key + glance)) for key, glance in zip(facing, look, strict=True))
    return Step((down, across), facing)


def _driven(keyboard: NDArray[np.float32], mouse: NDArray[np.float32]) -> Step:
    forward, back = (int(value > 0) for value in keyboard)
    _, right = _looked(mouse)
    return Step((back - forward, right), (-1, right))


def _run(keyboard: NDArray[np.float32], _: NDArray[np.float32]) -> Step:
    slide, pose = _RUNS[int(keyboard.argmax())]
    return Step(slide, slide, pose)


# Columns of templerun: none, jump, slide, turn left, turn right, left side, right side.
_RUNS: tuple[tuple[Cells, str], ...] = (
    ((-1, 0), "stands"),
    ((-1, 0), "jumps"),
    ((-1, 0), "slides"),
    ((0, -1), "stands"),
    ((0, 1), "stands"),
    ((-1, -1), "stands"),
    ((-1, 1), "stands"),
)


def _walks(random: np.random.Generator) -> tuple[Sequence[int], tuple[float, float]]:
    held = [_one_of(random, 0, 1), _one_of(random, 2, 3)]
    look = (0.0, 0.0)
    if random.random() < 0.5:
        up, across = _SIDES[int(random.integers(len(_SIDES)))]
        look = (-0.1 * up, 0.1 * across)
    return [column for columns in held for column in columns], look


def _drives(random: np.random.Generator) -> tuple[Sequence[int], tuple[float, float]]:
    forward = random.random() < 0.35
    return [0] if forward else _one_of(random, 0, 1), (0.0, float(random.choice([-0.1, 0.0, 0.1])))


def _runs(random: np.random.Generator) -> tuple[Sequence[int], tuple[float, float]]:
    return [int(random.integers(len(_RUNS)))], (0.0, 0.0)


def _one_of(random: np.random.Generator, *columns: int) -> list[int]:
    """Return a random one of the columns, or none in half of the cases."""
    return [columns[int(random.integers(len(columns)))]] if random.random() < 0.5 else []


WORLDS: Mapping[str, World] = {
    "universal": World(wild_map, _walked, _walks, 4, (244, 150, 36)),
    "gta_drive": World(road_map, _driven, _drives, 2, (206, 34, 44)),
    "templerun": World(ruins_map, _run, _runs, 7, (70, 60, 200)),
}
"""Worlds by mode."""


def drawn_on(ground: NDArray[np.uint8], mode: str, step: Step) -> NDArray[np.uint8]:
    """Draw the player on a piece of ground, [24, 24, 3]."""
    picture = ground.astype(np.float32)
    for colour, distance in _sprite(mode, step.facing, step.pose):
        picture = painted(picture, colour, distance)
    return np.rint(picture).astype(np.uint8)


@cache
def _sprite(mode: str, facing: Cells, pose: str) -> tuple[tuple[Rgb, NDArray[Any]], ...]:
    x, y = pixels_about_middle(SPRITE_PX)
    colour = WORLDS[mode].colour
    if mode == "gta_drive":
        # The car leans when it steers.
        x = x - 0.35 * facing[1] * -y
        return (
            ((40, 16, 20), box(x, y, 5.5, 8.5)),
            (colour, box(x, y, 4.5, 7.5)),
            ((190, 220, 240), box(x, y + 2.5, 3.0, 2.0)),
        )
    if pose == "jumps":
        return (((30, 30, 34), disc(x, y - 4, 6.0)), (colour, disc(x, y + 3, 7.5)))
    if pose == "slides":
        return ((colour, box(x, y, 9.0, 3.5)),)
    length = float(np.hypot(*facing))
    nose_y, nose_x = (5.0 * part / length for part in facing)
    return (
        ((40, 30, 30), disc(x, y, 7.0)),
        (colour, disc(x, y, 5.8)),
        ((250, 250, 250), disc(x - nose_x, y - nose_y, 3.2)),
    )
