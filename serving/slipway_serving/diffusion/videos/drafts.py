"""Drafts: the current prediction of a video at a stop, as frames, as a file or as one picture."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from PIL import Image

from slipway_serving.diffusion.videos.loop import Boundary
from slipway_serving.protocol.diffusion.stopping import ContactSheet, DenoisingRequest
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.protocol.events import Event
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.video.delivery import Delivery, deliver
from slipway_serving.video.frames import Frames

SHEET = "sheet"
_SHEET_FRAMES = 9
_SHEET_COLUMNS = 3
# A sheet of nine 720p frames at full size would have 2160x3840 pixels.
_LARGEST_SIDE_PX = 480
_DRAFT_FPS = 16


def draft_events(
    boundary: Boundary, request: DenoisingRequest, interruption: Interruption, where: str
) -> Iterator[Event]:
    """Yield the draft of a video at a boundary, in the form that the request asks for.

    A video of several loops shows the frames of the loop under way.

    Args:
        boundary: Boundary after a step.
        request: Request with a draft.
        interruption: Clock of the request.
        where: Name of the pipeline, for messages.

    Raises:
        Unrecoverable: The decoder returns no frames.
    """
    if boundary.clean is None:
        return
    decoded = list(boundary.video.decode(boundary.clean().numpy()))
    frames = np.concatenate(decoded) if decoded else np.zeros((0, 1, 1, 3), np.uint8)
    if not len(frames):
        raise Unrecoverable(f"{where}: the decoder must return frames for a draft, got none")
    if request.draft == SHEET:
        yield ContactSheet(contact_sheet(frames), boundary.step)
        return
    count, height, width, _ = frames.shape
    fps = getattr(request, "fps", _DRAFT_FPS)
    delivery = Delivery(where, getattr(request, "output", "video"), count, height, width, fps)
    for part in deliver(delivery, [frames], interruption):
        yield replace(part, draft_step=boundary.step)


def contact_sheet(frames: Frames, columns: int = _SHEET_COLUMNS, most_frames: int = _SHEET_FRAMES) -> bytes:
    """Return a PNG file with frames side by side, row by row, evenly spaced over the video.

    Args:
        frames: Frames, [frames, height, width, 3], uint8.
        columns: Number of frames in a row.
        most_frames: Largest number of frames; they are scaled down to at most 480 pixels a side.
    """
    chosen = frames[np.unique(np.linspace(0, len(frames) - 1, min(most_frames, len(frames))).astype(int))]
    height, width = chosen.shape[1:3]
    scale = min(1.0, _LARGEST_SIDE_PX / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    columns = min(columns, len(chosen))
    rows = -(-len(chosen) // columns)
    sheet = Image.new("RGB", (columns * size[0], rows * size[1]))
    for index, frame in enumerate(chosen):
        picture = Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR)
        sheet.paste(picture, (index % columns * size[0], index // columns * size[1]))
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()
