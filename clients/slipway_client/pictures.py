"""Conversion of common picture files to the form that the served models take.

A server accepts a few picture formats within strict bounds. A file that meets them is sent byte for byte. Any
other file is decoded here, turned upright, composited on white, converted to 8-bit RGB and shrunk if it is
too large; the result is a PNG. A callback reports every change.
"""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slipway_client.progress import Say, silent
from slipway_serving.protocol import images
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.fields import Image, fields_of
from slipway_serving.protocol.requests import Request

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

FORMATS = (*images.FORMATS, "GIF", "BMP", "TIFF")
CONVERTED = "Pictures that do not meet this rule, and GIF, BMP and TIFF files, are converted first."
"""Sentence in an option's help about files that do not meet the rule."""
_KINDS = "PNG, JPEG, WebP, GIF, BMP or TIFF"
# Pillow turns these into RGB without clipping a value.
_OPAQUE = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr")
_16_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
_WHITE = (255, 255, 255)
# A PNG of noise is larger than its pixels: by 5 bytes for each 32 kB, and by one byte for each row.
_PNG_OVERHEAD = 1.001


def read_picture(path: Path, rule: Image | None = None, say: Say = silent) -> bytes:
    """Read a picture file for the image field of a request.

    Args:
        path: File of a PNG, JPEG, WebP, GIF, BMP or TIFF picture.
        rule: Rule of the field; by default the usual bounds of a picture.
        say: Callback that receives a sentence about every change.

    Returns:
        The bytes of the file itself if it meets the rule, otherwise those of a PNG.

    Raises:
        InvalidRequest: The file cannot be read, or cannot be converted to a picture that meets the rule.
    """
    rule = Image("a picture") if rule is None else rule
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path}: a picture must be a readable file, got {error}") from None
    if not rule.problem("a picture", content):
        return content
    converted = _convert(path, content, rule)
    if problem := rule.problem("a picture", converted.png):
        raise InvalidRequest(f"{path}: {problem}")
    say(f"{path}: {', '.join(converted.changes)}; sent as a PNG")
    return converted.png


def image_rule(request: type[Request], name: str = "image") -> Image:
    """Return the rule of a request's image field."""
    (rule,) = (field.rule for field in fields_of(request) if field.name == name)
    assert isinstance(rule, Image)
    return rule


@dataclass(frozen=True)
class _ConvertedPicture:
    """Picture converted to a form that servers accept, and the changes that this took."""

    png: bytes
    changes: list[str]


def _convert(path: Path, content: bytes, rule: Image) -> _ConvertedPicture:
    """Decode a picture file and convert it to a PNG that meets a rule."""
    from PIL import Image as Pillow
    from PIL import UnidentifiedImageError

    changes: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns at its bound and raises at twice the bound.
            picture = Pillow.open(io.BytesIO(content), formats=FORMATS)
            _check_one_picture(path, picture)
            picture.load()
        if picture.format not in images.FORMATS and picture.format != "MPO":
            changes.append(f"converted from {picture.format}")
        exif_orientation = _orientation(picture, changes)
        rgb = _to_rgb(path, picture, images.bits_per_channel(picture, content), changes)
        resized = _shrink(images.rotate_upright(rgb, exif_orientation), rule, changes)
    except Pillow.DecompressionBombError as error:
        raise InvalidRequest(
            f"{path}: a picture must have fewer pixels, got too many ({error}); try resizing it"
        ) from None
    except UnidentifiedImageError:
        raise InvalidRequest(
            f"{path}: a picture must be a {_KINDS} file, got bytes that begin with {content[:8]!r};"
            " try saving it as a PNG or JPEG file"
        ) from None
    except images.DAMAGED as error:
        raise InvalidRequest(
            f"{path}: a picture must be complete, got a truncated or damaged file ({error}); try saving it"
            " again"
        ) from None
    file = io.BytesIO()
    resized.save(file, format="PNG")
    return _ConvertedPicture(file.getvalue(), changes or ["encoded again"])


def _check_one_picture(path: Path, picture: Picture) -> None:
    frames = getattr(picture, "n_frames", 1)
    if frames != 1 and picture.format != "MPO":
        raise InvalidRequest(
            f"{path}: a picture must have one frame, got {frames}; try saving one of them as a file"
        )


def _orientation(picture: Picture, changes: list[str]) -> int:
    try:
        exif_orientation = images.orientation(picture)
    except ValueError:
        changes.append("its EXIF data are damaged, so it was not rotated and may lie on its side")
        return 1
    if exif_orientation != 1:
        changes.append(f"rotated upright from EXIF orientation {exif_orientation}")
    return exif_orientation


def _to_rgb(path: Path, picture: Picture, bits_per_channel: int, changes: list[str]) -> Picture:
    """Return a picture as 8-bit RGB.

    Args:
        path: File, for the error.
        picture: Picture as it was opened.
        bits_per_channel: Bits of a channel in the file.
        changes: List to which a change is added.

    Raises:
        InvalidRequest: The picture's mode has values of no known range, or no colours.
    """
    from PIL import Image as Pillow

    if bits_per_channel > 8 or picture.mode in _16_BIT:
        changes.append("reduced from 16 to 8 bits per channel")
    if picture.mode in _16_BIT:
        # The full range of 16 bits becomes the full range of 8.
        eight = np.round(np.asarray(picture, np.uint16) / 257).astype(np.uint8)
        return Pillow.fromarray(eight).convert("RGB")
    if picture.has_transparency_data:
        return _on_white(picture.convert("RGBA"), changes)
    if picture.mode not in _OPAQUE:
        raise InvalidRequest(
            f"{path}: a picture must be grey or in colour with 8 or 16 bits per channel, got mode"
            f" {picture.mode};"
            " try saving it as RGB"
        )
    if picture.mode == "CMYK":
        changes.append("converted from CMYK to RGB without its colour profile")
    return picture.convert("RGB")


def _on_white(picture: Picture, changes: list[str]) -> Picture:
    from PIL import Image as Pillow

    if picture.getchannel("A").getextrema() == (255, 255):
        changes.append("its transparency channel, which is opaque everywhere, removed")
        return picture.convert("RGB")
    changes.append("transparent parts composited on white")
    ground = Pillow.new("RGBA", picture.size, (*_WHITE, 255))
    return Pillow.alpha_composite(ground, picture).convert("RGB")


def _shrink(picture: Picture, rule: Image, changes: list[str]) -> Picture:
    """Shrink a picture so that its sides, and its pixels as a PNG, meet a rule; never enlarge it."""
    from PIL import Image as Pillow

    width, height = picture.size
    most_pixels = rule.largest_bytes / (3 * _PNG_OVERHEAD)
    scale = min(1.0, rule.largest_px / max(width, height), math.sqrt(most_pixels / (width * height)))
    if scale == 1.0:
        return picture
    size = max(1, int(width * scale)), max(1, int(height * scale))
    changes.append(f"shrunk from {width}x{height} to {size[0]}x{size[1]}")
    return picture.resize(size, Pillow.Resampling.LANCZOS)
