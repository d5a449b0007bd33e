"""Subjects and scenes of clips: colour, shape, motion, ground, and the combinations kept from training.

A seeded generator draws a scene; `captions` describes it in words, and `render` draws its pixels.
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
# A rotation does not change how these shapes look.
ROUND = ("ball", "ring")
# Every eighth combination of colour, shape and motion is kept from training.
_UNSEEN_EVERY = 8
# Range of a shape's radius, as a share of the clip's side.
_RADIUS = (0.16, 0.23)
# Largest size of a shape that grows or shrinks, as a multiple of its radius.
_LARGEST = 1.3


@dataclass(frozen=True)
class Ways:
    """Ranges of a scene's free parameters; lengths are shares of the clip's side.

    Args:
        reach: Distance that a shape moves in a clip.
        turn_rad: Angle by which a shape turns in a clip, in radians.
        hop: Height of a bounce.
        hops: Number of bounces in a clip.
        smallest: Size at which a growing shape begins and a shrinking shape ends, as a share of the radius.
    """

    reach: tuple[float, float] = (0.5, 0.62)
    turn_rad: tuple[float, float] = (0.8 * math.pi, 1.4 * math.pi)
    hop: tuple[float, float] = (0.2, 0.3)
    hops: tuple[float, float] = (2.2, 3.2)
    smallest: tuple[float, float] = (0.35, 0.5)


ANY_WAY = Ways()


@dataclass(frozen=True)
class Subject:
    """Words that describe a scene, from `COLOURS`, `SHAPES`, `MOTIONS` and `GROUNDS`."""

    colour: str
    shape: str
    motion: str
    ground: str

    @property
    def unseen(self) -> bool:
        """Return True if training never combines this colour, shape and motion.

        Training often combines any two of the three words, so that only the full combination is new.
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
    """Subject with the parameters that words leave open; lengths are shares of the clip's side.

    Args:
        subject: Subject in words.
        start: Position of the shape's centre in the first frame, x from the left and y from the top.
        radius: Radius of the shape at size 1.
        velocity: Velocity of the centre per frame, x to the right and y down.
        angle_rad: Angle of the shape in the first frame, clockwise, in radians.
        spin_rad: Rotation of the shape per frame, clockwise, in radians.
        sizes: Size in the first frame and its change per frame, as shares of the radius.
        hop: Height of a bounce; 0 if the shape does not bounce.
        hop_frames: Duration of one bounce, in frames.
        horizon: Position of the line between wall and ground, from the top.
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
    """Return the subjects kept from training if `unseen` is True, else those that training sees."""
    every = (Subject(*words) for words in product(COLOURS, SHAPES, MOTIONS, GROUNDS))
    return [
        subject
        for subject in every
        if subject.unseen is unseen and not (subject.motion == "turns" and subject.shape in ROUND)
    ]


def random_scene(
    random: np.random.Generator, choice: Sequence[Subject], frames: int, ways: Ways = ANY_WAY
) -> Scene:
    """Draw a random scene.

    Args:
        random: Generator of all choices.
        choice: Subjects to choose from.
        frames: Number of frames in which the motion covers its whole reach, at least 2. In a longer clip the
            motion continues.
        ways: Ranges from which the parameters are drawn.
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
