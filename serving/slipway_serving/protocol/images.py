"""Pictures in requests: checks before anything is decoded, and conversion to RGB pixels.

A picture travels as the bytes of a PNG, JPEG or WebP file, or as base64 text of them where a protocol carries
text only. Pixels from a caller travel as a PNG, which is lossless. The checks read size and mode from the
file's header; only a picture that passes them is decoded.
"""

from __future__ import annotations

import base64
import binascii
import io
import struct
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP")
_FIX = "a PNG, JPEG or WebP file, or uint8 pixels [height, width, 3]"
# These modes convert to RGB without loss. Transparency is excluded, since it has no colour of its own.
_MODES = ("RGB", "L", "P", "1")
# _PNG_DEPTH is the header byte with the bits of a channel. Pillow would silently drop half of 16 bits.
_PNG_DEPTH, _DEPTH_BITS = 24, 8
DAMAGED = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, SyntaxError, TypeError),
    *(ValueError, struct.error, zlib.error),
)
"""Exceptions that Pillow raises for a damaged file; its parsers pass on whatever fails in them."""


def problem(value: Any, sides_px: range, largest_bytes: int) -> str:
    """Return an error message "<rule>, got <value>; try <fix>" for a picture, or an empty string.

    Args:
        value: Bytes of a file, or uint8 pixels [height, width, 3].
        sides_px: Allowed lengths of each side, in pixels.
        largest_bytes: Largest size of a file, in bytes.
    """
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] != 3:
            return f"{_FIX}, got {value.dtype} {list(value.shape)}; try RGB pixels of uint8"
        return _size_problem(value.shape[1], value.shape[0], sides_px)
    if not isinstance(value, bytes):
        return f"{_FIX}, got {type(value).__name__}; try the file's bytes"
    if len(value) > largest_bytes:
        return f"at most {largest_bytes} bytes, got {len(value)}; try a smaller picture"
    return _file_problem(value, sides_px)


def to_bytes(value: bytes | NDArray[np.uint8]) -> bytes:
    """Return the bytes of a picture's file, and encode pixels as PNG."""
    if isinstance(value, bytes):
        return value
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(value).save(file, format="PNG")
    return file.getvalue()


def decode_if_base64(raw: bytes) -> bytes:
    """Return the bytes of a file, decoded if they came as base64 text.

    This is unambiguous: the header of every picture file has bytes that are not base64 characters.
    """
    try:
        return base64.b64decode(raw, validate=True)
    except binascii.Error:
        return raw


def pixels(value: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Decode a checked picture to upright RGB pixels, [height, width, 3], uint8."""
    if isinstance(value, np.ndarray):
        return value
    picture = _open(value)
    return np.array(rotate_upright(picture.convert("RGB"), orientation(picture)), dtype=np.uint8)


def bits_per_channel(picture: Image, value: bytes) -> int:
    """Return the number of bits per channel in a picture's file."""
    return value[_PNG_DEPTH] if picture.format == "PNG" else _DEPTH_BITS


def orientation(picture: Image) -> int:
    """Read the orientation from a picture's EXIF or XMP data, 1 to 8; 1 is upright.

    Raises:
        ValueError: The data are damaged, so that the orientation is unknown.
    """
    from PIL import Image as Pillow
    from PIL.ExifTags import Base

    # Pillow ignores damaged EXIF data when it opens a JPEG file. A second picture makes it read them again.
    other = Pillow.new("1", (1, 1))
    other.info = dict(picture.info)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about each entry that it skips.
            exif_orientation = other.getexif().get(Base.Orientation, 1)
    except DAMAGED as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    # Cameras write 0 where they do not know the orientation.
    return exif_orientation if exif_orientation in range(1, 9) else 1


def rotate_upright(picture: Image, exif_orientation: int) -> Image:
    """Turn a picture upright and remove its EXIF data.

    Args:
        picture: Picture with the pixels as the file stores them.
        exif_orientation: Orientation from the file, 1 to 8.
    """
    from PIL import ImageOps
    from PIL.ExifTags import Base

    bare = picture.copy()
    bare.info = {}
    bare.getexif()[Base.Orientation] = exif_orientation
    return ImageOps.exif_transpose(bare)


def _file_problem(value: bytes, sides_px: range) -> str:
    """Return the problem of a picture file, or an empty string; decode it only if its header is valid."""
    from PIL import UnidentifiedImageError
    from PIL.Image import DecompressionBombError

    try:
        picture = _open(value)
        found_problem = _size_problem(*picture.size, sides_px) or _mode_problem(picture, value)
        if not found_problem:
            # A truncated file opens, but decoding its pixels fails. The size is known to be small enough.
            picture.load()
            found_problem = _orientation_problem(picture)
    except DecompressionBombError as error:
        return f"{_sides_rule(sides_px)}, got far more ({error}); try resizing it"
    except UnidentifiedImageError:
        return f"{_FIX}, got bytes that begin with {value[:8]!r}; try another file"
    except DAMAGED as error:
        return f"a complete picture, got a truncated or damaged file ({error}); try sending it again"
    return found_problem


def _mode_problem(picture: Image, value: bytes) -> str:
    """Return the problem of a picture's colour mode or number of frames, or an empty string."""
    frames, transparent = getattr(picture, "n_frames", 1), "transparency" in picture.info
    if picture.mode not in _MODES or transparent or bits_per_channel(picture, value) > _DEPTH_BITS:
        got = f"mode {picture.mode} of {bits_per_channel(picture, value)} bits" + (
            " with transparency" if transparent else ""
        )
        return f"RGB or grey of {_DEPTH_BITS} bits without transparency, got {got}; try converting it to RGB"
    # Phones write JPEG files with previews and depth maps after the picture, a format that Pillow calls MPO.
    if frames == 1 or picture.format == "MPO":
        return ""
    return f"a picture with one frame, got {frames}; try sending one of them"


def _orientation_problem(picture: Image) -> str:
    try:
        orientation(picture)
    except ValueError as error:
        return (
            "a picture with readable EXIF data, which give its orientation, got damaged data"
            f" ({error}); try saving it without EXIF data"
        )
    return ""


def _size_problem(width: int, height: int, sides_px: range) -> str:
    if width in sides_px and height in sides_px:
        return ""
    return f"{_sides_rule(sides_px)}, got {width}x{height}; try resizing it"


def _sides_rule(sides_px: range) -> str:
    return f"{sides_px[0]} to {sides_px[-1]} px a side"


def _open(value: bytes) -> Image:
    """Open a picture file and read its header only."""
    from PIL import Image

    with warnings.catch_warnings():
        # Pillow warns about pictures above its own limit, which the size check refuses anyway, and about
        # metadata that it skips.
        warnings.simplefilter("ignore")
        return Image.open(io.BytesIO(value), formats=FORMATS)
