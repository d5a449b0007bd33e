"""Picture files of users, as the client brings them into the form that servers accept."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image as Pillow

from slipway_client.pictures import FORMATS, read_picture
from slipway_serving.protocol import images
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.fields import Image

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
SMALL = Image("a picture", largest_px=64, largest_bytes=4096)


def write(path: Path, picture: Pillow.Image, kind: str, **options: Any) -> Path:
    picture.save(path, format=kind, **options)
    return path


def read(path: Path, rule: Image | None = None) -> tuple[NDArray[np.uint8], str]:
    """Return the pixels of the picture that is sent, and what the user is told."""
    said: list[str] = []
    sent = read_picture(path, rule, said.append)
    assert (rule or Image("a picture")).problem("image", sent) == ""
    if not said:
        assert sent == path.read_bytes()
    return images.pixels(sent), "".join(said)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_file_that_keeps_the_rules_is_sent_byte_for_byte(tmp_path: Path, kind: str) -> None:
    assert read(write(tmp_path / "a", Pillow.fromarray(PIXELS), kind))[1] == ""


@pytest.mark.parametrize("kind", ["BMP", "TIFF"])
def test_file_of_another_kind_keeps_its_pixels(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "a", Pillow.fromarray(PIXELS), kind)
    pixels, said = read(path)
    np.testing.assert_array_equal(pixels, PIXELS)
    assert said == f"{path}: converted from {kind}; sent as a PNG"


def test_first_frame_of_a_gif_that_has_no_other_keeps_its_colours(tmp_path: Path) -> None:
    flat = Pillow.new("RGB", (40, 24), (10, 200, 30))
    pixels, said = read(write(tmp_path / "a.gif", flat, "GIF"))
    assert (pixels == (10, 200, 30)).all()
    assert said.endswith("a.gif: converted from GIF; sent as a PNG")


def test_first_picture_of_a_phones_file_is_used(tmp_path: Path) -> None:
    first, second = Pillow.new("RGB", (40, 24), (200, 0, 0)), Pillow.new("RGB", (20, 16), (0, 0, 200))
    path = write(tmp_path / "phone.jpg", first, "MPO", save_all=True, append_images=[second])
    # The server accepts such a file itself.
    pixels, said = read(path)
    assert (pixels.shape, said) == ((24, 40, 3), "")
    assert np.abs(pixels.astype(int) - (200, 0, 0)).max() < 5


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_parts_are_put_on_white(tmp_path: Path, mode: str) -> None:
    alpha = np.full((24, 40), 255, np.uint8)
    alpha[:, :20] = 0
    picture = Pillow.fromarray(np.dstack([np.full((24, 40, 3), 40, np.uint8), alpha]))
    pixels, said = read(write(tmp_path / "a.png", picture.convert(mode), "PNG"))
    assert (pixels[:, :20] == 255).all()
    assert (pixels[:, 20:] == 40).all()
    assert said.endswith("a.png: transparent parts composited on white; sent as a PNG")


def test_half_transparent_parts_are_mixed_with_white(tmp_path: Path) -> None:
    half = Pillow.new("RGBA", (40, 24), (55, 55, 55, 128))
    pixels, _ = read(write(tmp_path / "a.png", half, "PNG"))
    assert np.abs(pixels.astype(int) - 155).max() <= 1


def test_transparency_that_hides_nothing_is_left_out(tmp_path: Path) -> None:
    picture = Pillow.fromarray(np.dstack([PIXELS, np.full((24, 40), 255, np.uint8)]))
    pixels, said = read(write(tmp_path / "screen.png", picture, "PNG"))
    np.testing.assert_array_equal(pixels, PIXELS)
    assert "its transparency channel, which is opaque everywhere, removed" in said


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_become_eight_over_the_full_range(tmp_path: Path, kind: str) -> None:
    values = np.linspace(0, 65535, 24 * 40).round().astype(np.uint16).reshape(24, 40)
    pixels, said = read(write(tmp_path / "a", Pillow.fromarray(values), kind))
    np.testing.assert_array_equal(pixels, np.round(values / 257).astype(np.uint8)[:, :, None].repeat(3, 2))
    assert "reduced from 16 to 8 bits per channel" in said


def png_of_16_bits(values: NDArray[np.uint16]) -> bytes:
    """Return an RGB PNG of 16 bits a channel, which Pillow reads and does not write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width, _ = values.shape
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_colours_of_sixteen_bits_become_eight(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    path.write_bytes(png_of_16_bits(PIXELS.astype(np.uint16) * 257))
    pixels, said = read(path)
    np.testing.assert_array_equal(pixels, PIXELS)
    assert said.endswith("deep.png: reduced from 16 to 8 bits per channel; sent as a PNG")


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    ink = Pillow.new("CMYK", (40, 24), (0, 255, 255, 0))
    pixels, said = read(write(tmp_path / "print.jpg", ink, "JPEG", quality=100))
    assert np.abs(pixels.astype(int) - (255, 0, 0)).max() < 8
    assert "converted from CMYK to RGB without its colour profile" in said


def test_large_picture_is_shrunk_and_its_user_is_told(tmp_path: Path) -> None:
    gradient = np.tile(np.linspace(0, 255, 200).astype(np.uint8)[None, :, None], (100, 1, 3))
    path = write(tmp_path / "large.png", Pillow.fromarray(gradient), "PNG")
    pixels, said = read(path, Image("a picture", largest_px=64))
    assert pixels.shape == (32, 64, 3)
    assert said == f"{path}: shrunk from 200x100 to 64x32; sent as a PNG"
    assert np.abs(pixels[0, :, 0] - np.linspace(1, 254, 64)).max() < 3


def test_noise_is_shrunk_until_its_file_is_small_enough(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    path = write(tmp_path / "noise.png", Pillow.fromarray(noise), "PNG")
    pixels, said = read(path, SMALL)
    assert pixels.shape == (36, 36, 3)
    assert "shrunk from 64x64 to 36x36" in said


def test_shrunk_picture_is_upright(tmp_path: Path) -> None:
    wide = np.zeros((40, 120, 3), np.uint8)
    wide[:, 60:] = 255
    exif = Pillow.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    path = write(tmp_path / "phone.jpg", Pillow.fromarray(wide), "JPEG", exif=exif)
    pixels, said = read(path, Image("a picture", largest_px=60))
    assert pixels.shape == (60, 20, 3)
    assert (pixels[:25].mean() < 5, pixels[-25:].mean() > 250) == (True, True)
    assert "rotated upright from EXIF orientation 6, shrunk from 40x120 to 20x60" in said


def test_tiff_is_turned_upright_once(tmp_path: Path) -> None:
    path = write(tmp_path / "scan.tiff", Pillow.fromarray(PIXELS), "TIFF", tiffinfo={0x0112: 6})
    np.testing.assert_array_equal(read(path)[0], np.rot90(PIXELS, -1))


def test_damaged_exif_is_left_out_and_its_user_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.png", Pillow.fromarray(PIXELS), "PNG", exif=b"Exif\0\0no TIFF header")
    pixels, said = read(path)
    np.testing.assert_array_equal(pixels, PIXELS)
    assert "its EXIF data are damaged, so it was not rotated and may lie on its side" in said


def animation(path: Path, kind: str) -> Path:
    frames = [Pillow.fromarray(PIXELS), Pillow.fromarray(255 - PIXELS)]
    return write(path, frames[0], kind, save_all=True, append_images=frames[1:])


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_file_of_several_pictures_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(
        InvalidRequest, match="a picture must have one frame, got 2; try saving one of them as a file"
    ):
        read_picture(animation(tmp_path / "a", kind))


def test_file_that_is_no_picture_is_refused_by_name(tmp_path: Path) -> None:
    cases = {
        "photo.heic": (b"\0\0\0\x18ftypheic", "must be a PNG, JPEG, WebP, GIF, BMP or TIFF file"),
        "empty.png": (b"", "must be a PNG, JPEG, WebP, GIF, BMP or TIFF file"),
    }
    for name, (content, text) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidRequest, match=f"{name}: a picture {text}"):
            read_picture(tmp_path / name)
    with pytest.raises(InvalidRequest, match=r"none.png: a picture must be a readable file, got .*No such"):
        read_picture(tmp_path / "none.png")


def test_picture_that_breaks_off_or_is_too_small_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bmp", Pillow.fromarray(PIXELS), "BMP")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidRequest, match="a picture must be complete, got a truncated or damaged file"):
        read_picture(path)
    tiny = write(tmp_path / "tiny.gif", Pillow.new("L", (15, 40)), "GIF")
    with pytest.raises(InvalidRequest, match="tiny.gif: a picture must be 16 to 4096 px a side, got 15x40"):
        read_picture(tiny)
    floats = write(tmp_path / "floats.tiff", Pillow.new("F", (40, 24)), "TIFF")
    with pytest.raises(InvalidRequest, match="in colour with 8 or 16 bits per channel, got mode F"):
        read_picture(floats)


def test_decompression_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = write(tmp_path / "bomb.gif", Pillow.new("L", (16, 16)), "GIF")
    content = bytearray(path.read_bytes())
    content[6:10] = struct.pack("<HH", 65_535, 65_535)
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match="a picture must have fewer pixels, got too many"):
        read_picture(path)


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_file_is_refused_or_keeps_the_rules(tmp_path: Path, kind: str) -> None:
    whole = write(tmp_path / "whole", Pillow.fromarray(PIXELS), kind).read_bytes()
    path = tmp_path / "damaged"

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        damaged = bytearray(whole)
        for _ in range(data.draw(st.integers(0, 8))):
            damaged[data.draw(st.integers(0, min(200, len(damaged) - 1)))] = data.draw(st.integers(0, 255))
        path.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
        try:
            sent = read_picture(path, SMALL)
        except InvalidRequest:
            return
        assert SMALL.problem("image", sent) == ""

    holds()
