"""Arrays and pictures as fields: what each refuses, and that values survive the way through tensors."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageOps

from slipway_serving.protocol import images
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.protocol.events import Event, read, tensors
from slipway_serving.protocol.fields import BATCH, Array, Image, Rule, fields_of
from slipway_serving.protocol.requests import Request, decode, encode

_EVEN = Rule(
    "even altogether",
    lambda a: a.sum() % 2 == 0,
    lambda _: "another",
    "",
    format_value=lambda a: f"{a.sum()}",
)
_FRAMES = Array("float32", (BATCH, "frames", 3), "signals", fix="windows")
_SHARED = Array(
    "float32", (BATCH, "frames"), "weights", {"frames": (1, 4)}, low=-1, high=1, fix_values="less"
)
_COUNTS = Array("int32", ("counts",), "counts", {"counts": (0, None)}, low=0, extra_rule=_EVEN)
_NAMES = Array("text", ("names",), "names", {"names": (0, 3)}, default="every one")
_RAW = Array("float32", (2,), "of another model", finite=False)


@dataclass(frozen=True)
class Sample(Request):
    model: ClassVar[str] = "sample"

    frames: Annotated[NDArray[np.float32], _FRAMES]
    weights: Annotated[NDArray[np.float32] | None, _SHARED] = None
    counts: Annotated[NDArray[np.int32] | None, _COUNTS] = None
    names: Annotated[NDArray[np.object_] | None, _NAMES] = None
    raw: Annotated[NDArray[np.float32] | None, _RAW] = None


@dataclass(frozen=True)
class Answer(Event):
    names: Annotated[NDArray[np.object_], _NAMES]
    raw: Annotated[NDArray[np.float32], _RAW]


FRAMES = np.arange(24, dtype=np.float32).reshape(2, 4, 3)


def broken(**values: Any) -> str:
    """Return what a request of these values breaks."""
    with pytest.raises(InvalidRequest) as caught:
        Sample(**{"frames": FRAMES, **values})
    return str(caught.value)


def holed(value: float) -> NDArray[np.float32]:
    array = FRAMES.copy()
    array[1, 2, 0] = value
    return array


# Arrays.


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"frames": [[1.0]]}, "frames must be float32 [batch, frames, 3], got [[1.0]]; try an array"),
        (
            {"frames": FRAMES.astype(np.float64)},
            "frames must be float32 [batch, frames, 3], got float64 [2, 4, 3]",
        ),
        ({"frames": FRAMES[0]}, "frames must be float32 [batch, frames, 3], got float32 [4, 3]"),
        ({"frames": FRAMES[:, :, :2]}, "frames must be float32 [batch, frames, 3], got float32 [2, 4, 2]"),
        ({"frames": FRAMES[:, :0]}, "frames must have 1 or more frames, got shape [2, 0, 3]"),
        ({"frames": FRAMES[:0]}, "frames must have a batch of 1 or more, got shape [0, 4, 3]"),
        ({"frames": holed(np.nan)}, "frames must be finite, got nan at frame 2"),
        ({"frames": holed(-np.inf)}, "frames must be finite, got -inf at frame 2"),
        ({"weights": np.zeros((2, 5), np.float32)}, "weights must have 1 to 4 frames, got shape [2, 5]"),
        ({"weights": np.full((2, 4), 1.5, np.float32)}, "weights must be within -1 to 1, got 1.5; try less"),
        ({"weights": np.full((2, 4), -2, np.float32)}, "weights must be within -1 to 1, got -2; try less"),
        (
            {"weights": np.zeros((2, 3), np.float32)},
            "frames and weights must have the same frames, got shapes [2, 4, 3] and [2, 3]",
        ),
        (
            {"weights": np.zeros((1, 4), np.float32)},
            "frames and weights must have the same batch, got shapes [2, 4, 3] and [1, 4]",
        ),
        ({"counts": np.array([1, -1], np.int32)}, "counts must be at least 0, got -1"),
        ({"counts": np.array([1, 2], np.int32)}, "counts must be even altogether, got 3; try another"),
        ({"names": np.array(["a"] * 4, np.object_)}, "names must have 0 to 3 names, got shape [4]"),
        ({"names": np.array([b"ab\xff"], np.object_)}, "names must be UTF-8 text, got byte 0xff at offset 2"),
        ({"names": np.array(["a\0"], np.object_)}, "names must be text without NUL, got one at character 1"),
        ({"names": np.array([b"a\0"], np.object_)}, "names must be text without NUL, got one at character 1"),
        (
            {"names": np.array(["\ud800"], np.object_)},
            "names must be Unicode text, got an unpaired surrogate",
        ),
        ({"names": np.array([3], np.object_)}, "names must be text, got 3"),
    ],
)
def test_array_is_refused_by_name_when_it_breaks_a_rule(values: dict[str, Any], text: str) -> None:
    assert f"sample: {text}" in broken(**values)


def test_all_broken_arrays_are_named_in_one_message() -> None:
    message = broken(frames=holed(np.nan), counts=np.array([-1], np.int32))
    assert message == "sample: frames must be finite, got nan at frame 2 | counts must be at least 0, got -1"


def test_array_of_another_model_may_hold_what_is_no_number() -> None:
    assert np.isnan(Sample(FRAMES, raw=np.array([np.nan, 1], np.float32)).raw).any()  # type: ignore[arg-type]


def test_rule_of_an_array_says_sizes_values_and_the_rest() -> None:
    rules = {field.name: field.rule.must for field in fields_of(Sample)}
    assert rules == {
        "frames": "finite",
        "weights": "1 to 4 frames; within -1 to 1",
        "counts": "0 or more counts; at least 0; even altogether",
        "names": "0 to 3 names",
        "raw": "",
    }
    assert Array("int8", (BATCH,), "", {BATCH: (1, 1)}).must == "a batch of 1"


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
SHAPE = st.tuples(st.integers(1, 3), st.integers(1, 4))


@given(SHAPE, st.lists(TEXT, max_size=3), st.data())
def test_arrays_come_back_when_they_were_encoded(shape: tuple[int, int], names: list[str], data: Any) -> None:
    numbers = st.floats(-1, 1, width=32)
    request = Sample(
        frames=data.draw(arrays.arrays(np.float32, (*shape, 3), elements=numbers)),
        weights=data.draw(arrays.arrays(np.float32, shape, elements=numbers)),
        counts=2 * data.draw(arrays.arrays(np.int32, st.integers(0, 5), elements=st.integers(0, 1000))),
        names=np.array([*names, None], np.object_)[:-1],
    )
    wire = encode(request)
    assert all(isinstance(element, bytes) for element in wire["names"])
    again = decode(Sample, wire, "sample")
    for field in fields_of(Sample):
        value, given_back = getattr(request, field.name), getattr(again, field.name)
        if value is None:
            assert given_back is None
        else:
            assert value.dtype == given_back.dtype
            np.testing.assert_array_equal(value, given_back)


def test_texts_of_a_fixed_width_are_texts_too() -> None:
    request = Sample(FRAMES, names=np.array(["one", "three"]))  # type: ignore[arg-type]
    assert encode(request)["names"].tolist() == [b"one", b"three"]


def test_array_is_sent_as_it_looks_when_it_is_a_view() -> None:
    turned = Sample(FRAMES[:, ::-1])
    assert encode(turned)["frames"].flags.c_contiguous
    np.testing.assert_array_equal(encode(turned)["frames"], FRAMES[:, ::-1])


def test_event_with_texts_is_read_as_it_was_made() -> None:
    answer = Answer(np.array(["a", "ż"], np.object_), np.array([1, np.inf], np.float32))
    wire = tensors(answer)
    assert wire["names"].tolist() == [b"a", "ż".encode()]
    again = read((Answer,), wire, "sample")
    assert isinstance(again, Answer)
    assert again.names.tolist() == ["a", "ż"]
    assert again.raw.tolist() == [1, np.inf]
    with pytest.raises(Unrecoverable, match="sample: names must be UTF-8 text"):
        read((Answer,), {**wire, "names": np.array([b"\xff"], np.object_)}, "sample")


# Pictures.


@dataclass(frozen=True)
class Pictured(Request):
    model: ClassVar[str] = "pictured"

    image: Annotated[bytes | NDArray[np.uint8], Image("the first frame", largest_bytes=1 << 20)]


PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)


def file_of(kind: str, mode: str = "RGB", size: tuple[int, int] = (40, 24), **options: Any) -> bytes:
    file = io.BytesIO()
    Pillow.new(mode, size).save(file, format=kind, **options)
    return file.getvalue()


def pixels_of(file: bytes) -> NDArray[np.uint8]:
    return decode(Pictured, {"image": np.array([file], np.object_)}, "here").image  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [(kind, mode) for kind in ("PNG", "JPEG", "WEBP") for mode in ("RGB", "L")]
    + [("PNG", "P"), ("PNG", "1")],
)
def test_picture_is_taken_when_it_is_a_file_of_a_known_kind(kind: str, mode: str) -> None:
    file = file_of(kind, mode)
    request = Pictured(file)
    assert encode(request)["image"].tolist() == [file]
    assert images.pixels(request.image).shape == (24, 40, 3)


def test_picture_survives_as_pixels_as_its_file_and_as_base64() -> None:
    wire = encode(Pictured(PIXELS))["image"]
    assert wire[0].startswith(b"\x89PNG")
    again = decode(Pictured, {"image": wire}, "here").image
    text = np.array([base64.b64encode(wire[0])], np.object_)
    assert decode(Pictured, {"image": text}, "here").image == again
    np.testing.assert_array_equal(images.pixels(again), PIXELS)


def png_header(width: int, height: int, depth: int = 8, kind: int = 2) -> bytes:
    """Return a PNG that ends after its header and some bytes that are no pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"no pixels") + chunk(b"IEND", b"")


def animated(kind: str) -> bytes:
    file = io.BytesIO()
    frames = [Pillow.fromarray(PIXELS), Pillow.fromarray(255 - PIXELS)]
    frames[0].save(file, format=kind, save_all=True, append_images=frames[1:])
    return file.getvalue()


GOOD = file_of("PNG")
BAD_PICTURES: list[tuple[Any, str]] = [
    (3, "a PNG, JPEG or WebP file, or uint8 pixels [height, width, 3], got int"),
    (PIXELS.astype(np.float32), "[height, width, 3], got float32 [24, 40, 3]"),
    (PIXELS[:, :, 0], "[height, width, 3], got uint8 [24, 40]"),
    (PIXELS[:8], "16 to 4096 px a side, got 40x8; try resizing it"),
    (b"", "got bytes that begin with b''"),
    (file_of("GIF"), "got bytes that begin with b'GIF"),
    (b"BM" + GOOD, "got bytes that begin with b'BM"),
    (GOOD[:-30], "a complete picture, got a truncated or damaged file"),
    (file_of("JPEG")[:-60], "a complete picture, got a truncated or damaged file"),
    (png_header(64, 64), "a complete picture, got a truncated or damaged file"),
    (file_of("PNG", size=(15, 40)), "16 to 4096 px a side, got 15x40"),
    # Neither has any pixels: the size is looked at before one is decoded.
    (png_header(4097, 16), "16 to 4096 px a side, got 4097x16; try resizing it"),
    (png_header(60_000, 60_000), "16 to 4096 px a side, got far more"),
    (file_of("PNG", "RGBA"), "RGB or grey of 8 bits without transparency, got mode RGBA"),
    (file_of("PNG", "LA"), "without transparency, got mode LA"),
    (file_of("PNG", "P", transparency=0), "without transparency, got mode P of 1 bits with transparency"),
    (file_of("WEBP", "RGBA"), "without transparency, got mode RGBA"),
    (file_of("JPEG", "CMYK"), "without transparency, got mode CMYK"),
    (file_of("PNG", "I;16"), "RGB or grey of 8 bits without transparency, got mode I;16 of 16 bits"),
    (png_header(64, 64, depth=16), "got mode RGB of 16 bits"),
    (animated("WEBP"), "a picture with one frame, got 2; try sending one of them"),
    (animated("PNG"), "a picture with one frame, got 2; try sending one of them"),
    *(
        (
            file_of(kind, exif=exif),
            "a picture with readable EXIF data, which give its orientation, got damaged",
        )
        for kind in ("PNG", "JPEG", "WEBP")
        for exif in (b"Exif\0\0no TIFF header", b"Exif\0\0MM\0*")
    ),
    (bytes(1 << 20) + b"!", "at most 1048576 bytes, got 1048577; try a smaller picture"),
]


@pytest.mark.parametrize(("picture", "text"), BAD_PICTURES, ids=range(len(BAD_PICTURES)))
def test_picture_is_refused_by_name_when_it_breaks_a_rule(picture: Any, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Pictured(picture)
    message = str(caught.value)
    assert message.startswith("pictured: image must be ")
    assert text in message
    if isinstance(picture, bytes) and picture:
        with pytest.raises(InvalidRequest, match="here: image must be"):
            pixels_of(picture)


def test_picture_is_turned_upright_when_its_file_says_how() -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    file = io.BytesIO()
    Pillow.fromarray(PIXELS).save(file, format="PNG", exif=exif)
    np.testing.assert_array_equal(images.pixels(file.getvalue()), np.rot90(PIXELS, -1))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))
def test_picture_of_any_orientation_is_what_pillow_makes_of_it(kind: str, orientation: int) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    file = file_of(kind, exif=exif)
    with Pillow.open(io.BytesIO(file)) as picture:
        expected = np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    np.testing.assert_array_equal(images.pixels(Pictured(file).image), expected)


def test_first_picture_of_a_phones_file_is_used() -> None:
    flat = [Pillow.new("RGB", (40, 24), colour) for colour in ("red", "blue")]
    file = io.BytesIO()
    flat[0].save(file, format="MPO", save_all=True, append_images=flat[1:])
    pixels = images.pixels(pixels_of(file.getvalue()))
    assert np.abs(pixels.astype(int) - (255, 0, 0)).max() < 5


def test_grey_picture_becomes_rgb() -> None:
    grey = images.pixels(file_of("PNG", "L"))
    assert (grey.shape, grey.dtype) == ((24, 40, 3), np.uint8)


def test_rule_of_a_picture_says_kinds_sides_and_size() -> None:
    (field,) = fields_of(Pictured)
    assert field.rule.must == (
        "a PNG, JPEG or WebP file of 16 to 4096 px a side and at most 1 MiB, without transparency"
    )
