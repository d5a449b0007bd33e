"""What a world of `matrix_game` is told: rows of actions, the first picture, its place; and its requests."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slipway_serving.families.matrix_game import actions
from slipway_serving.families.matrix_game.facts import Actions, Facts, Latents, ModelNames
from slipway_serving.families.matrix_game.picture import conditions, crop_and_resize, to_encoder_input
from slipway_serving.families.matrix_game.request import (
    REQUESTS,
    GtaDriveActions,
    TempleRunActions,
    UniversalActions,
    UniversalRequest,
    row_problems,
)
from slipway_serving.families.matrix_game.session import is_late
from slipway_serving.protocol.errors import InvalidRequest

FACTS = Facts(
    mode="universal",
    steps=(1000, 666, 333),
    timestep_shift=5.0,
    latents=Latents(16, 4, 44, 80, block_frames=3, held_frames=3, positions=1024, picture_frames=30),
    actions=Actions({"mouse_cond": 2, "keyboard_cond": 4}, before=12, rows=20),
    picture_px=(352, 640),
    frames_per_latent=4,
    models=ModelNames("image_encoder", "vae_encoder", "vae_decoder"),
)
RANDOM = np.random.default_rng(0)


def test_world_ends_where_upstreams_positions_end() -> None:
    assert (FACTS.frames(0), FACTS.frames(1), FACTS.frames(2)) == (0, 9, 21)
    assert (FACTS.block_frames(first=True), FACTS.block_frames(first=False)) == (9, 12)
    # The last block that fits ends with latent frame 1,023 of 1,024.
    assert (FACTS.blocks, FACTS.frames(FACTS.blocks)) == (341, 4089)


def test_block_is_told_the_rows_around_it_when_they_come_block_by_block() -> None:
    video = RANDOM.standard_normal((FACTS.frames(5), 4)).astype(np.float32)
    before: actions.Rows = {}
    for block in range(5):
        own = video[FACTS.frames(block) : FACTS.frames(block + 1)]
        rows = actions.append_rows(before, {"keyboard_cond": own}, FACTS)
        first = 4 * 3 * block
        wanted = video[np.maximum(np.arange(first - 12, first + 8), 0)]
        np.testing.assert_array_equal(actions.network_inputs(rows, FACTS)["keyboard_cond"], wanted[None])
        before = actions.history_rows(rows, FACTS)


def test_row_stands_for_every_frame_when_it_comes_alone() -> None:
    row = {"mouse_cond": np.full((1, 2), 0.1, np.float32)}
    first = actions.append_rows({}, row, FACTS)
    rows = actions.append_rows(
        actions.history_rows(first, FACTS), {"mouse_cond": np.zeros((1, 2), np.float32)}, FACTS
    )
    told = actions.network_inputs(rows, FACTS)["mouse_cond"][0, :, 0]
    np.testing.assert_array_equal(told, np.float32([0.1] * 9 + [0] * 11))


@pytest.mark.parametrize(
    ("count", "frames", "fits"), [(9, 9, True), (1, 12, True), (9, 12, False), (2, 9, False)]
)
def test_rows_are_one_or_as_many_as_frames(count: int, frames: int, fits: bool) -> None:
    problems = row_problems({"keyboard_cond": np.zeros((count, 4), np.float32)}, frames)
    rule = f"{frames} rows, one for each frame of the block, or 1 row for all"
    assert problems == ([] if fits else [f"keyboard_cond must have {rule}, got shape [{count}, 4]"])


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((640, 352), (0, 0, 640, 352)),
        ((300, 1001), (0, 418, 300, 583)),  # 300 * 352 / 640 = 165 of 1001 px are kept
        ((1000, 300), (228, 0, 772, 300)),  # 545.45 of 1000: from 227.5 to 772.5, which Pillow rounds to even
    ],
)
def test_picture_is_cut_around_its_middle_and_resized(size: tuple[int, int], box: tuple[int, ...]) -> None:
    pixels = RANDOM.integers(0, 256, (size[1], size[0], 3), np.uint8)
    left, top, right, bottom = box
    cut = Image.fromarray(pixels[top:bottom, left:right])
    wanted = np.asarray(cut.resize((640, 352), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(crop_and_resize(pixels, FACTS.picture_px), wanted)


def test_samples_are_within_one() -> None:
    pixels = np.array([[[0, 255, 51]]], np.uint8)
    np.testing.assert_allclose(
        to_encoder_input(pixels), np.float32([-1, 1, -0.6]).reshape(1, 3, 1, 1), atol=1e-6
    )


def test_block_is_conditioned_on_the_last_latent_when_the_picture_has_no_more() -> None:
    latents = Latents(2, 4, 1, 1, block_frames=3, held_frames=3, positions=1024, picture_frames=5)
    picture = np.arange(10, dtype=np.float32).reshape(1, 2, 5, 1, 1)
    first, second, late = (conditions(picture, start, latents)[0, :, :, 0, 0] for start in (0, 3, 30))
    assert first[:4].tolist() == [[1, 0, 0]] * 4
    assert not second[:4].any() and not late[:4].any()
    assert first[4:].tolist() == [[0, 1, 2], [5, 6, 7]]
    assert second[4:].tolist() == [[3, 4, 4], [8, 9, 9]]
    assert late[4:].tolist() == [[4, 4, 4], [9, 9, 9]]


def steering(mouse: Any = None, keys: Any = None) -> dict[str, Any]:
    zeros = {"mouse_cond": np.zeros((12, 2), np.float32), "keyboard_cond": np.zeros((12, 4), np.float32)}
    given = {"mouse_cond": mouse, "keyboard_cond": keys}
    return zeros | {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            steering(keys=np.zeros((12, 7), np.float32)),
            r"keyboard_cond must be float32 \[frames, 4\], got .* 7\]",
        ),
        (steering(keys=np.full((12, 4), 2, np.float32)), "keyboard_cond must be within 0 to 1, got 2"),
        (steering(mouse=np.full((12, 2), -1.5, np.float32)), "mouse_cond must be within -1 to 1, got -1.5"),
        (
            steering(mouse=np.full((12, 2), np.nan, np.float32)),
            "mouse_cond must be finite, got nan at frame 0",
        ),
        (
            steering(mouse=np.zeros((9, 2), np.float32)),
            "mouse_cond and keyboard_cond must have the same frames",
        ),
    ],
)
def test_actions_are_refused_by_field_when_a_rule_is_broken(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        UniversalActions(**fields)


def test_actions_are_those_of_the_mode() -> None:
    drive = GtaDriveActions(np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32))
    run = TempleRunActions(np.ones((9, 7), np.float32))
    assert (drive.keyboard_cond.shape, run.keyboard_cond.shape) == ((1, 2), (9, 7))
    with pytest.raises(
        InvalidRequest, match=r"matrix_game_templerun: keyboard_cond must be float32 \[frames, 7\]"
    ):
        TempleRunActions(np.ones((9, 4), np.float32))
    assert {mode: request.model for mode, request in REQUESTS.items()} == {
        mode: f"matrix_game_{mode}" for mode in ("universal", "gta_drive", "templerun")
    }


def bomb() -> bytes:
    """A PNG whose header tells of 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"image": b"nothing"}, "image must be a PNG, JPEG or WebP file"),
        ({"image": bomb()}, "image must be 16 to 4096 px a side, got far more"),
        ({"image": np.zeros((8, 32, 3), np.uint8)}, "image must be 16 to 4096 px a side, got 32x8"),
        ({"seed": -1}, "seed must be 0 to 4294967295, got -1"),
        ({"output": "video"}, "output must be one of frames, jpeg"),
        ({"output": "mp4"}, "fps must be 1 to 120 with output mp4, got 0; try 25"),
    ],
)
def test_opening_is_refused_by_field_when_a_rule_is_broken(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        UniversalRequest(**({"image": np.zeros((48, 80, 3), np.uint8)} | fields))


@pytest.mark.parametrize(
    ("took_s", "frames", "fps", "late"),
    [(0.49, 12, 25, True), (0.47, 12, 25, False), (0.37, 9, 25, True), (9.0, 12, 0, False)],
)
def test_block_is_late_when_it_takes_longer_than_its_frames_last(
    took_s: float, frames: int, fps: int, late: bool
) -> None:
    assert is_late(took_s, frames, fps) == late


def test_facts_are_read_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_bytes(FACTS.to_json())
    assert Facts.read(tmp_path) == FACTS
