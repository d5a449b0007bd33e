"""Tiles of time and pictures of latents, by values that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from slipway_serving.video.preview import LatentRgb, preview
from slipway_serving.video.tiles import decode_tiles

FRAMES_PER_LATENT = 2


def latents(count: int) -> np.ndarray:
    """Return latent frames, each of which has its number as its value."""
    numbers = np.arange(count, dtype=np.float32)
    return np.broadcast_to(numbers[None, None, :, None, None], (1, 4, count, 1, 2))


def decoder() -> tuple[Callable[[np.ndarray], np.ndarray], list[list[float]]]:
    """Return a decoder whose frames have their latent's value, and 10 more with each tile; and the tiles."""
    tiles: list[list[float]] = []

    def decode(tile: np.ndarray) -> np.ndarray:
        values = tile[0, 0, :, 0, 0]
        tiles.append(values.tolist())
        frames = np.concatenate([values[:1], np.repeat(values[1:], FRAMES_PER_LATENT)])
        shape = (1, 3, len(frames), 1, 2)
        return np.broadcast_to((frames + 10 * (len(tiles) - 1))[None, None, :, None, None], shape)

    return decode, tiles


def decoded(
    count: int, frames: int, stride: int, blended: int
) -> tuple[list[list[float]], list[list[float]]]:
    decode, tiles = decoder()
    options = {"frames": frames, "stride": stride, "blended": blended, "frames_per_latent": FRAMES_PER_LATENT}
    found = list(decode_tiles(latents(count), decode, **options))
    assert all(piece.shape[:2] == (1, 3) and piece.shape[3:] == (1, 2) for piece in found)
    assert {piece.dtype for piece in found} == {np.dtype(np.float32)}
    assert sum(piece.shape[2] for piece in found) == FRAMES_PER_LATENT * (count - 1) + 1
    return [piece[0, 0, :, 0, 0].tolist() for piece in found], tiles


def test_tile_fades_in_from_the_one_before_where_they_overlap() -> None:
    frames, tiles = decoded(5, frames=4, stride=2, blended=2)
    assert tiles == [[0, 1, 2, 3], [2, 3, 4]]
    # The second tile's first frame is dropped; of latent 3 both tiles have two frames.
    assert frames == [[0, 1, 1, 2, 2], [3, 8, 14, 14]]


def test_tile_fades_over_no_more_frames_than_it_has() -> None:
    frames, tiles = decoded(4, frames=4, stride=2, blended=9)
    assert tiles == [[0, 1, 2, 3], [2, 3]]
    assert frames == [[0, 1, 1, 2, 2], [3, 8]]


def test_tiles_follow_each_other_when_nothing_is_blended() -> None:
    frames, tiles = decoded(7, frames=3, stride=2, blended=0)
    assert tiles == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert frames == [[0, 1, 1, 2, 2], [13, 13, 14, 14], [25, 25, 26, 26]]


@pytest.mark.parametrize(
    ("count", "tiles"), [(3, [[0, 1, 2]]), (4, [[0, 1, 2, 3], [2, 3]]), (1, [[0]]), (2, [[0, 1]])]
)
def test_latents_are_one_tile_when_they_are_fewer_than_a_tile_has(
    count: int, tiles: list[list[float]]
) -> None:
    assert decoded(count, frames=4, stride=2, blended=1)[1] == tiles


def test_one_latent_is_one_frame_when_a_tile_has_one() -> None:
    assert decoded(1, frames=1, stride=1, blended=1)[0] == [[0]]


@pytest.mark.parametrize(("count", "middle"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_preview_draws_the_middle_latent_in_the_colours_of_its_map(count: int, middle: int) -> None:
    values = np.zeros((1, 2, count, 2, 3), np.float32)
    values[0, 0, middle], values[0, 1, middle] = 0.5, -0.25
    values[0, 0, middle, 1, 2] = 9.0
    rgb = LatentRgb(weight=((1.0, 0.0, -1.0), (0.0, 2.0, 1.0)), bias=(0.0, 0.5, -0.25))
    picture = preview(values, rgb)
    assert (picture.shape, picture.dtype) == ((2, 3, 3), np.uint8)
    # Colours 0.5, 0 and -1 of -1 to 1.
    assert picture[0, 0].tolist() == [191, 128, 0]
    assert picture[1, 2].tolist() == [255, 128, 0]
