"""Output files of a generation: video as .mp4, frames as .npy, a picture as .png, other arrays as .npz.

The events of a request determine which of these its result can be. A file appears complete or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_cli.files import place_problem, replaced_files, write_whole
from slipway_client.results import Frames, Video, join_frames
from slipway_serving.protocol.diffusion.stopping import STOP_EVENTS
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable, raise_all
from slipway_serving.protocol.events import Binary, Event, FramesPart, Picture, Progress, VideoPart
from slipway_serving.protocol.events import tensors as event_tensors
from slipway_serving.protocol.requests import Request

# Suffix of the file and form of the requested result, by the event that carries the result.
_FORMS: dict[type[Event], tuple[str, str]] = {VideoPart: (".mp4", "video"), FramesPart: (".npy", "frames")}
_ARRAYS = ".npz"
# Pillow's name of the format, by the suffix of a picture's file.
_PICTURES = {".png": "PNG", ".jpg": "JPEG", ".webp": "WEBP"}


def suffixes(events: Sequence[type[Event]]) -> list[str]:
    """Return the suffixes of the files that events can be written to, the usual one first."""
    found = [suffix for event, (suffix, _) in _FORMS.items() if event in events]
    if Picture in events:
        found += _PICTURES
    others = [event for event in events if event not in (*_FORMS, *STOP_EVENTS, Progress, Picture)]
    return [*found, *([_ARRAYS] if others else [])]


def check_output(
    path: Path, events: Sequence[type[Event]], *, overwrite: bool = False, where: str = "generate"
) -> str:
    """Check, before any work, that a result can be written to a path; return the form to ask for.

    Args:
        path: Path of the file.
        events: Types of the events that answer the request.
        overwrite: True if the file may replace an existing one.
        where: Name of the command, for messages.

    Returns:
        "video" or "frames" where a request has the choice, else "".

    Raises:
        InvalidRequest: The suffix is not allowed, the folder is missing or read-only, or the file exists.
    """
    allowed = suffixes(events)
    problem = place_problem(path, allowed)
    if problem:
        raise InvalidRequest(f"{where}: --output {problem}, got {path}; try --output out{allowed[0]}")
    raise_all(where, replaced_files({"--output": path}, overwrite=overwrite))
    forms = [form for event, (suffix, form) in _FORMS.items() if event in events and suffix == path.suffix]
    return forms[0] if len([event for event in events if event in _FORMS]) > 1 and forms else ""


def write(request: Request, answers: Sequence[Any], path: Path) -> dict[str, Any]:
    """Write the result of a generation to a file.

    Args:
        request: Request that the server answered.
        answers: Results of a generation, or the events of a session, in their order.
        path: Path of the file.

    Returns:
        The content of the file: the size of a video or of frames, or the shape of each array by name.

    Raises:
        Unrecoverable: The answers contain no such result.
    """
    video = next((answer for answer in answers if isinstance(answer, Video)), None)
    if path.suffix == ".mp4" and video is not None:
        write_whole(path, lambda file: file.write(video.data))
        return _content(request, request.result_shape())
    if path.suffix == _ARRAYS:
        arrays = _arrays(answers)
        write_whole(path, lambda file: np.savez(file, **arrays))
        return {"arrays": {name: list(array.shape) for name, array in arrays.items()}}
    if path.suffix in _PICTURES:
        picture = _picture(request, answers)
        _write_picture(path, picture)
        return {"width": picture.shape[1], "height": picture.shape[0]}
    frames = _frames(request, answers)
    write_whole(path, lambda file: np.save(file, frames))
    return _content(request, frames.shape)


def describe(content: Mapping[str, Any]) -> str:
    """Describe the content of a file, as :func:`write` returns it, in words."""
    if "arrays" in content:
        return ", ".join(f"{name} {shape}" for name, shape in content["arrays"].items())
    if "frames" not in content:
        return f"a picture, {content['width']}x{content['height']}" if "width" in content else "a video"
    size = f"{content['frames']} frames, {content['width']}x{content['height']}"
    return f"{size}, {content['fps']} fps" if "fps" in content else size


def cache_hit_rate(answers: Sequence[Any]) -> float | None:
    """Return the share of denoiser calls that a cache saved, or None without a cache."""
    rates = [rate for answer in answers if (rate := getattr(answer, "cache_hit_rate", None)) is not None]
    return rates[-1] if rates else None


def _content(request: Request, shape: tuple[int, ...] | None) -> dict[str, Any]:
    if shape is None:
        return {}
    fps = getattr(request, "fps", None)
    size = {"frames": shape[0], "width": shape[2], "height": shape[1]}
    return size if fps is None else {**size, "fps": fps}


def _frames(request: Request, answers: Sequence[Any]) -> NDArray[np.uint8]:
    whole = next((answer for answer in answers if isinstance(answer, Frames)), None)
    if whole is not None:
        return whole.array
    parts = [answer for answer in answers if isinstance(answer, FramesPart)]
    if not parts:
        raise Unrecoverable(f"{request.model}: the server must send a result, got none; see the server's log")
    return join_frames(parts, request.model)


def _picture(request: Request, answers: Sequence[Any]) -> NDArray[np.uint8]:
    picture = next((answer for answer in answers if isinstance(answer, Picture)), None)
    if picture is None:
        raise Unrecoverable(
            f"{request.model}: the server must send a picture, got none; see the server's log"
        )
    return picture.picture


def _write_picture(path: Path, pixels: NDArray[np.uint8]) -> None:
    from PIL import Image

    picture = Image.fromarray(pixels, "RGB")
    write_whole(path, lambda file: picture.save(file, _PICTURES[path.suffix], quality=95))


def _arrays(answers: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays of events by name; of several events each name is preceded by the event's number."""
    found = [
        {name: _plain(array) for name, array in event_tensors(answer).items()}
        for answer in answers
        if isinstance(answer, Event)
    ]
    if len(found) == 1:
        return found[0]
    return {f"{index:03}_{name}": array for index, each in enumerate(found) for name, array in each.items()}


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return texts as an array of NumPy's text type, and bytes as numbers, so that no pickle is needed."""
    if array.dtype != np.object_:
        return array
    values = list(array.reshape(-1))
    if len(values) == 1 and isinstance(values[0], Binary):
        return np.frombuffer(values[0], np.uint8)
    texts = [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values]
    return np.array(texts, np.str_).reshape(array.shape)
