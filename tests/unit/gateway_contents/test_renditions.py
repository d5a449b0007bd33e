"""Thumbnails and sheets of frames."""

from __future__ import annotations

import io
import tracemalloc

import numpy as np
import pytest
from gateway_contents.sample_videos import FPS, fragmented, pixels, whole
from PIL import Image

from slipway_gateway.contents import renditions as module
from slipway_gateway.contents.renditions import renditions
from slipway_serving.protocol.errors import Unrecoverable


def opened(data: bytes, kind: str) -> Image.Image:
    picture = Image.open(io.BytesIO(data))
    assert picture.format == kind
    return picture.convert("RGB")


@pytest.mark.parametrize("encode", [whole, fragmented])
def test_renditions_state_the_facts_of_a_video_when_it_is_whole_or_in_fragments(encode: object) -> None:
    found = renditions(encode(pixels(33)))  # type: ignore[operator]
    assert (found.frames, found.width, found.height, found.fps) == (33, 96, 64, FPS)


def test_thumbnail_shows_the_first_frame_in_its_colours_when_the_video_is_small() -> None:
    picture = opened(renditions(whole(pixels(9))).thumbnail, "WEBP")
    assert picture.size == (96, 64)
    np.testing.assert_allclose(picture.getpixel((20, 30)), (200, 20, 20), atol=8)
    np.testing.assert_allclose(picture.getpixel((80, 30)), (0, 0, 0), atol=8)


@pytest.mark.parametrize(("height", "width", "size"), [(64, 1024, (512, 32)), (1040, 520, (256, 512))])
def test_thumbnail_is_scaled_to_512_pixels_when_a_side_is_longer(
    height: int, width: int, size: tuple[int, int]
) -> None:
    assert opened(renditions(whole(pixels(1, height, width))).thumbnail, "WEBP").size == size


@pytest.mark.parametrize(
    ("frames", "columns", "rows"), [(1, 1, 1), (3, 3, 1), (6, 4, 2), (16, 4, 4), (40, 4, 4)]
)
def test_spritesheet_shows_frames_evenly_in_order_when_a_video_has_any_length(
    frames: int, columns: int, rows: int
) -> None:
    sheet = opened(renditions(whole(pixels(frames))).spritesheet, "JPEG")
    assert sheet.size == (columns * 96, rows * 64)
    shown = min(frames, 16)
    greys = [sheet.getpixel((tile % 4 * 96 + 72, tile // 4 * 64 + 32))[0] for tile in range(shown)]  # type: ignore[index]
    wanted = np.linspace(0, 255, frames)[np.linspace(0, frames - 1, shown).round().astype(int)]
    np.testing.assert_allclose(greys, wanted, atol=12)


def test_renditions_keep_few_frames_in_memory_when_a_video_is_long() -> None:
    def peak_bytes(frames: int) -> int:
        video = whole(pixels(frames, 256, 256))
        tracemalloc.start()
        try:
            renditions(video)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # 480 frames of pixels are 94 MB, of which 16 small ones may stay.
    assert peak_bytes(480) < peak_bytes(32) + (8 << 20)


@pytest.mark.parametrize(
    "damage", [lambda mp4: b"", lambda mp4: b"<html>" * 99, lambda mp4: mp4[: len(mp4) // 2]]
)
def test_renditions_are_refused_when_the_video_is_damaged(damage: object) -> None:
    with pytest.raises(Unrecoverable, match="renditions: the video must be an MP4 file"):
        renditions(damage(whole(pixels(9))))  # type: ignore[operator]


def test_renditions_are_refused_when_a_file_has_no_video(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_count", lambda _: 0)
    with pytest.raises(Unrecoverable):
        renditions(b"")
