"""Maps of worlds: a land's ground with one thing on each tile, repeated endlessly in both directions.

Things are signed distances in a tile's pixels, so that edges cover a pixel partially.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = np.ndarray[Any, Any]
Rgb = tuple[int, int, int]

TILE_PX = 16
# A map repeats after this many tiles, which is further than any play in training goes.
TILES = 24
# Middle of a road, from the left of the map.
ROAD_PX = 2 * TILE_PX

LANDS: dict[str, Rgb] = {
    "meadow": (104, 158, 70),
    "desert": (214, 180, 116),
    "snow": (226, 232, 240),
}
_PLAIN = "plain"
# Plain tiles are few: the network invents what appears at an edge in few steps, and a mostly plain land would
# soon become all plain.
_WILD = {_PLAIN: 0.2, "tree": 0.3, "rock": 0.15, "pond": 0.2, "hut": 0.15}
_RUINS = {_PLAIN: 0.15, "tree": 0.25, "slab": 0.35, "pond": 0.1, "pillar": 0.15}
_BESIDE = {_PLAIN: 0.3, "tree": 0.35, "hut": 0.35}
_LANES = ("left lane", "right lane")
_LANE = (78, 78, 86)


@dataclass(frozen=True)
class Map:
    """Pixels of a land.

    Args:
        land: Name of the land, a key of `LANDS`.
        pixels: Pixels of the map, [side, side, 3], RGB. The map wraps around at its edges.
    """

    land: str
    pixels: NDArray[np.uint8]

    def view(self, top: int, left: int, height: int, width: int) -> NDArray[np.uint8]:
        """Return the part of the map from a pixel on, [height, width, 3]."""
        rows = (top + np.arange(height)) % len(self.pixels)
        columns = (left + np.arange(width)) % len(self.pixels)
        found: NDArray[np.uint8] = self.pixels[rows[:, None], columns]
        return found


def wild_map(random: np.random.Generator) -> Map:
    """Draw open country with trees, rocks, ponds and huts."""
    return _drawn(random, _scattered(random, _WILD))


def road_map(random: np.random.Generator) -> Map:
    """Draw a road of two lanes from bottom to top, with trees and huts beside it."""
    things = _scattered(random, _BESIDE)
    # The roads are half of the map's width apart, so that they also repeat evenly where the map wraps around.
    for first in (1, 1 + TILES // 2):
        things[:, first : first + 2] = _LANES
    return _drawn(random, things)


def ruins_map(random: np.random.Generator) -> Map:
    """Draw ruins: slabs, pillars, trees and ponds."""
    return _drawn(random, _scattered(random, _RUINS))


def _scattered(random: np.random.Generator, shares: dict[str, float]) -> NDArray[np.object_]:
    names = np.array(list(shares), dtype=object)
    things: NDArray[np.object_] = names[random.choice(len(names), (TILES, TILES), p=list(shares.values()))]
    return things


def _drawn(random: np.random.Generator, things: NDArray[np.object_]) -> Map:
    land = list(LANDS)[int(random.integers(len(LANDS)))]
    rows = [np.concatenate([_tile(land, thing) for thing in row], axis=1) for row in things]
    return Map(land, np.concatenate(rows))


@cache
def _tile(land: str, thing: str) -> NDArray[np.uint8]:
    """Return the tile of a thing on a land's ground, [TILE_PX, TILE_PX, 3]."""
    picture = np.broadcast_to(np.asarray(LANDS[land], np.float32), (TILE_PX, TILE_PX, 3))
    x, y = pixels_about_middle(TILE_PX)
    if thing != _PLAIN:
        for colour, distance in _LAYERS[thing](x, y):
            picture = painted(picture, colour, distance)
    return np.rint(picture).astype(np.uint8)


def pixels_about_middle(side: int) -> tuple[Floats, Floats]:
    """Return pixels' centres from the middle, x [1, side] to the right and y [side, 1] down, in pixels."""
    places = np.arange(side, dtype=np.float32) + 0.5 - side / 2
    return places[None, :], places[:, None]


def painted(picture: Floats, colour: Rgb, distance: Floats) -> Floats:
    """Paint a colour on a picture [height, width, 3] where a signed distance, in pixels, is below 0."""
    cover = np.clip(0.5 - distance, 0.0, 1.0)[..., None]
    found: Floats = picture * (1 - cover) + np.asarray(colour, np.float32) * cover
    return found


def disc(x: Floats, y: Floats, radius: float) -> Floats:
    """Return the signed distance to a disc about the origin."""
    found: Floats = np.hypot(x, y) - radius
    return found


def box(x: Floats, y: Floats, half_width: float, half_height: float) -> Floats:
    """Return the signed distance to a box about the origin, as the larger one of both axes."""
    found: Floats = np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)
    return found


def _tree(x: Floats, y: Floats) -> tuple[tuple[Rgb, Floats], ...]:
    return (((30, 82, 44), disc(x, y, 6.8)), ((58, 122, 62), disc(x + 1.5, y + 1.5, 3.6)))


def _rock(x: Floats, y: Floats) -> tuple[tuple[Rgb, Floats], ...]:
    return (((104, 104, 112), disc(x, y, 5.6)), ((160, 160, 168), disc(x + 1.2, y + 1.2, 3.0)))


def _pond(x: Floats, y: Floats) -> tuple[tuple[Rgb, Floats], ...]:
    return (((46, 104, 196), disc(x, y, 7.2)),)


def _hut(x: Floats, y: Floats) -> tuple[tuple[Rgb, Floats], ...]:
    return (((168, 62, 48), box(x, y, 6.0, 6.0)), ((214, 104, 80), box(x, y + 3.0, 6.0, 3.0)))


def _slab(x: Floats, y: Floats) -> tuple[tuple[Rgb, Floats], ...]:
    return (((176, 168, 150), box(x, y, 7.0, 7.0)),)


def _pillar(x: Floats, y: Floats) -> tuple[tuple[Rgb, Floats], ...]:
    return (((92, 84, 76), box(x, y, 5.5, 5.5)), ((196, 186, 160), box(x, y, 3.0, 3.0)))


def _left_lane(x: Floats, y: Floats) -> tuple[tuple[Rgb, Floats], ...]:
    return ((_LANE, box(x, y, 9.0, 9.0)), ((236, 232, 210), box(x - 8.0, y, 1.5, 4.0)))


def _right_lane(x: Floats, y: Floats) -> tuple[tuple[Rgb, Floats], ...]:
    return ((_LANE, box(x, y, 9.0, 9.0)), ((236, 232, 210), box(x + 8.0, y, 1.5, 4.0)))


_LAYERS = {
    "tree": _tree,
    "rock": _rock,
    "pond": _pond,
    "hut": _hut,
    "slab": _slab,
    "pillar": _pillar,
    "left lane": _left_lane,
    "right lane": _right_lane,
}
