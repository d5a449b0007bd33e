"""What a clip may show, in words: colour, shape, motion and ground; which combinations training never sees.

A scene is drawn by chance from a seeded generator; `captions` says it in words, `render` in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

Rgb = tuple[int, int, int]

COLOURS: dict[str, Rgb] = {
    "red": (225, 35, 40),
    "orange": (245, 140, 25),
    "yellow": (250, 225, 50),
    "green": (60, 215, 80),
    "cyan": (60, 225, 230),
    "blue": (45, 90, 245),
    "purple": (160, 60, 215),
    "white": (245, 245, 245),
}
SHAPES = ("ball", "square", "triangle", "star", "ring")
MOTIONS = (
    "moves to the right",
    "moves to the left",
    "moves up",
    "moves down",
    "bounces to the right",
    "bounces to the left",
    "turns",
    "grows",
    "shrinks",
)
GROUNDS: dict[str, Rgb] = {
    "grass": (48, 96, 44),
    "sand": (140, 116, 76),
    "stone": (98, 98, 104),
    "water": (32, 66, 116),
    "snow": (176, 186, 200),
    "asphalt": (34, 34, 38),
}
# They look the same however far they have turned.
ROUND = ("ball", "ring")
# Of the combinations of colour, shape and motion every eighth is kept from training.
_UNSEEN_EVERY = 8
# Of the clip's side: the radius of a shape.
_RADIUS = (0.16, 0.23)
# Of the radius, where a shape is largest.
_LARGEST = 1.3


@dataclass(frozen=True)
class Ways:
    """Between what a scene is drawn that words leave open; lengths are shares of the clip's side.

    Args:
        reach: how far a shape moves in a clip.
        turn_rad: how far one turns in a clip.
        hop: height of a bounce.
        hops: bounces in a clip.
        smallest: share of the radius where a shape that grows begins, and one that shrinks ends.
    """

    reach: tuple[float, float] = (0.5, 0.62)
    turn_rad: tuple[float, float] = (0.8 * math.pi, 1.4 * math.pi)
    hop: tuple[float, float] = (0.2, 0.3)
    hops: tuple[float, float] = (2.2, 3.2)
    smallest: tuple[float, float] = (0.35, 0.5)


ANY_WAY = Ways()


@dataclass(frozen=True)
class Subject:
    """The words of a scene: keys of `COLOURS`, `SHAPES`, `MOTIONS` and `GROUNDS`."""

    colour: str
    shape: str
    motion: str
    ground: str

    @property
    def unseen(self) -> bool:
        """Whether this colour, shape and motion are never together in training.

        Every two of the three words are together often, so that nothing but the combination is new.
        """
        places = (
            list(COLOURS).index(self.colour),
            SHAPES.index(self.shape),
            MOTIONS.index(self.motion),
        )
        return (
            sum(factor * place for factor, place in zip((1, 3, 5), places, strict=True)) % _UNSEEN_EVERY == 0
        )


@dataclass(frozen=True)
class Scene:
    """A subject with everything that words leave open; lengths are shares of the clip's side.

    Args:
        subject: in words.
        start: of the shape's centre, x from the left and y from the top.
        radius: of the shape, at its largest.
        velocity: of the centre, x to the right and y down, a frame.
        angle_rad: of the shape in the first frame, clockwise.
        spin_rad: that it turns by a frame, clockwise.
        sizes: share of the radius in the first frame and what is added a frame.
        hop: height of a bounce; 0 where nothing bounces.
        hop_frames: length of one bounce.
        horizon: height of the ground's line, from the top.
    """

    subject: Subject
    start: tuple[float, float]
    radius: float
    velocity: tuple[float, float]
    angle_rad: float
    spin_rad: float
    sizes: tuple[float, float]
    hop: float
    hop_frames: float
    horizon: float


def subjects(*, unseen: bool) -> list[Subject]:
    """Return all subjects that training sees, or all that it never sees."""
    every = (Subject(*words) for words in product(COLOURS, SHAPES, MOTIONS, GROUNDS))
    return [
        subject
        for subject in every
        if subject.unseen is unseen and not (subject.motion == "turns" and subject.shape in ROUND)
    ]


def random_scene(
    random: np.random.Generator, choice: Sequence[Subject], frames: int, ways: Ways = ANY_WAY
) -> Scene:
    """Draw a scene.

    Args:
        random: decides everything.
        choice: the subjects to choose from.
        frames: in which the motion goes through its whole reach, at least 2; a longer clip goes on beyond.
        ways: between what everything is drawn.
    """
    subject = choice[int(random.integers(len(choice)))]
    last = frames - 1
    radius, reach = random.uniform(*_RADIUS), random.uniform(*ways.reach)
    x, y = random.uniform(0.3, 0.7, size=2)
    velocity_x = velocity_y = spin = hop = growth = 0.0
    size = 1.0
    motion = subject.motion
    if motion.endswith(("right", "left")):
        direction = 1.0 if motion.endswith("right") else -1.0
        x = 0.5 - direction * (reach / 2 + random.uniform(-0.05, 0.05))
        velocity_x = direction * reach / last
        if motion.startswith("bounces"):
            hop = random.uniform(*ways.hop)
            y = random.uniform(0.62, 0.76)
    elif motion in ("moves up", "moves down"):
        direction = 1.0 if motion == "moves down" else -1.0
        y = 0.5 - direction * (reach / 2 + random.uniform(-0.05, 0.05))
        velocity_y = direction * reach / last
    elif motion == "turns":
        spin = random.uniform(*ways.turn_rad) / last
    else:
        smallest = random.uniform(*ways.smallest)
        size = smallest if motion == "grows" else _LARGEST
        growth = (_LARGEST - smallest) / last * (1 if motion == "grows" else -1)
    angle = random.uniform(-0.25, 0.25) if motion != "turns" else random.uniform(0, 2 * math.pi)
    return Scene(
        subject=subject,
        start=(float(x), float(y)),
        radius=radius,
        velocity=(velocity_x, velocity_y),
        angle_rad=angle,
        spin_rad=spin,
        sizes=(size, growth),
        hop=hop,
        hop_frames=last / random.uniform(*ways.hops),
        horizon=random.uniform(0.66, 0.8),
    )
