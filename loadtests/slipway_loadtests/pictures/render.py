"""Rendering of a scene: a shape with soft edges in front of a wall and a ground.

Shapes are signed distances, so that an edge covers a pixel partially and slow motion shows in every frame.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_loadtests.pictures.scenes import COLOURS, GROUNDS, Scene

Floats = np.ndarray[Any, Any]
# The wall has the ground's colour, darkened by this factor.
_WALL = 0.55
_SMALLEST = 0.15
_STAR_POINTS = 5


def render(scene: Scene, frames: range, side: int) -> NDArray[np.uint8]:
    """Render frames of a scene.

    Args:
        scene: Scene to draw.
        frames: Indices of the scene's frames to draw, from 0.
        side: Height and width, in pixels.

    Returns:
        Frames, RGB, [frames, side, side, 3].
    """
    # These are the centres of the pixels, as shares of the side.
    places = (np.arange(side, dtype=np.float32) + 0.5) / side
    time = np.asarray(frames, np.float32)[:, None, None]
    x = scene.start[0] + scene.velocity[0] * time
    y = scene.start[1] + scene.velocity[1] * time
    if scene.hop:
        y = y - scene.hop * np.abs(np.sin(math.pi * time / scene.hop_frames))
    angle = scene.angle_rad + scene.spin_rad * time
    size = scene.radius * np.maximum(scene.sizes[0] + scene.sizes[1] * time, _SMALLEST)
    dx, dy = places[None, None, :] - x, places[None, :, None] - y
    cos, sin = np.cos(angle), np.sin(angle)
    # These are coordinates in the shape's own axes, in units of its radius.
    u, v = (cos * dx + sin * dy) / size, (cos * dy - sin * dx) / size
    distance = _DISTANCES[scene.subject.shape](u, v) * size * side
    cover = np.clip(0.5 - distance, 0.0, 1.0)[..., None]
    shape = np.asarray(COLOURS[scene.subject.colour], np.float32)
    picture = _background(scene, side)[None] * (1 - cover) + shape * cover
    pixels: NDArray[np.uint8] = np.rint(picture).astype(np.uint8)
    return pixels


def _background(scene: Scene, side: int) -> Floats:
    """Return the wall and the ground, [side, side, 3], 0 to 255."""
    ground = np.asarray(GROUNDS[scene.subject.ground], np.float32)
    rows = np.arange(side, dtype=np.float32)[:, None, None]
    share = np.clip(rows + 1 - scene.horizon * side, 0.0, 1.0)
    shade = _WALL + (1 - _WALL) * share
    return np.broadcast_to((ground * shade).astype(np.float32), (side, side, 3))


def _ball(u: Floats, v: Floats) -> Floats:
    distance: Floats = np.hypot(u, v) - 1
    return distance


def _ring(u: Floats, v: Floats) -> Floats:
    distance: Floats = np.abs(_ball(u, v) + 0.22) - 0.22
    return distance


def _square(u: Floats, v: Floats) -> Floats:
    distance: Floats = np.maximum(np.abs(u), np.abs(v)) - 0.86
    return distance


def _triangle(u: Floats, v: Floats) -> Floats:
    # The three sides have the same distance from the centre; one of them is at the bottom.
    slanted = np.abs(u) * (math.sqrt(3) / 2) - v / 2
    distance: Floats = np.maximum(slanted, v) - 0.6
    return distance


def _star(u: Floats, v: Floats) -> Floats:
    # Within the sector of one point, the edge is the line from the tip to the notch.
    sector = 2 * math.pi / _STAR_POINTS
    angle = np.abs((np.arctan2(u, -v) + sector / 2) % sector - sector / 2)
    radius = np.hypot(u, v)
    along, across = radius * np.cos(angle), radius * np.sin(angle)
    tip, notch = np.array([1.15, 0.0]), 0.5 * np.array([math.cos(sector / 2), math.sin(sector / 2)])
    edge = notch - tip
    normal = np.array([-edge[1], edge[0]]) / np.hypot(*edge)
    normal *= np.sign(normal @ tip)
    distance: Floats = (along - tip[0]) * normal[0] + across * normal[1]
    return distance


_DISTANCES = {"ball": _ball, "square": _square, "triangle": _triangle, "star": _star, "ring": _ring}
