"""One picture of several drafts, each in a cell with its number."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slipway_serving.protocol import images
from slipway_serving.protocol.errors import Malformed

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

_GAP_PX = 8
_BACKGROUND = (32, 32, 32)
_LABEL_SHARE = 8
"""Height of a cell divided by the height of its number."""
_SMALLEST_LABEL_PX, _LARGEST_LABEL_PX = 16, 96
# The server's sheets have at most 3 x 3 frames of 480 pixels a side.
_SIDES_PX = range(1, 8193)
_LARGEST_BYTES = 64 << 20


def join_sheets(sheets: Sequence[bytes], where: str) -> bytes:
    """Join the contact sheets of drafts into one PNG file, with the number of each draft drawn on it.

    Args:
        sheets: Content of a PNG file for each draft.
        where: Name of the model, for messages.

    Raises:
        Malformed: A sheet is no picture of that kind.
    """
    from PIL import Image, ImageDraw, ImageFont

    cells = [_picture(sheet, where) for sheet in sheets]
    width, height = max(cell.width for cell in cells), max(cell.height for cell in cells)
    columns = math.ceil(math.sqrt(len(cells)))
    rows = math.ceil(len(cells) / columns)
    size = columns * (width + _GAP_PX) - _GAP_PX, rows * (height + _GAP_PX) - _GAP_PX
    joined = Image.new("RGB", size, _BACKGROUND)
    draw = ImageDraw.Draw(joined)
    label_px = min(_LARGEST_LABEL_PX, max(_SMALLEST_LABEL_PX, height // _LABEL_SHARE))
    font = ImageFont.load_default(label_px)
    for index, cell in enumerate(cells):
        at = index % columns * (width + _GAP_PX), index // columns * (height + _GAP_PX)
        joined.paste(cell, at)
        box = draw.textbbox(at, str(index + 1), font)
        draw.rectangle((*at, box[2] + label_px // 4, box[3] + label_px // 4), "black")
        draw.text((at[0] + label_px // 8, at[1]), str(index + 1), "white", font)
    file = io.BytesIO()
    joined.save(file, "PNG")
    return file.getvalue()


def _picture(sheet: bytes, where: str) -> Picture:
    from PIL import Image

    if problem := images.problem(sheet, _SIDES_PX, _LARGEST_BYTES):
        raise Malformed(f"{where}: a draft must be {problem}")
    return Image.fromarray(images.pixels(sheet))
