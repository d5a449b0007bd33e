"""What a generation gave, as a file: encoded video as it is, frames as .npy, other arrays as .npz.

Which of these a request can give follows from the events that answer it. A file appears whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_client.files import write_whole
from slipway_client.results import Frames, Video, join_frames
from slipway_serving.errors import InvalidRequest, Unrecoverable
from slipway_serving.events import Event, FramesPart, Progress, VideoPart
from slipway_serving.events import tensors as event_tensors
from slipway_serving.requests import Request

# By the event that carries it: the file's suffix, and the form of result that a request asks for.
_FORMS: dict[type[Event], tuple[str, str]] = {VideoPart: (".mp4", "video"), FramesPart: (".npy", "frames")}
_ARRAYS = ".npz"


def suffixes(events: Sequence[type[Event]]) -> list[str]:
    """Return the suffixes of files that events can make, the usual one first."""
    found = [suffix for event, (suffix, _) in _FORMS.items() if event in events]
    others = [event for event in events if event not in _FORMS and event is not Progress]
    return [*found, *([_ARRAYS] if others else [])]


def form_of(path: Path, events: Sequence[type[Event]]) -> str:
    """Check, before any work, that a result can be written to a path; return the form to ask for.

    Args:
        path: of the file.
        events: that answer the request.

    Returns:
        "video" or "frames" where a request has the choice, else "".

    Raises:
        InvalidRequest: another suffix, or a folder that is missing or read-only.
    """
    allowed = suffixes(events)
    problem = ""
    if path.suffix not in allowed:
        problem = f"must end in {' or '.join(allowed)}"
    elif path.is_dir():
        problem = "must be a file, not a folder"
    elif not path.parent.is_dir():
        problem = "must be in a folder that exists"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        problem = "must be in a folder that can be written"
    if problem:
        raise InvalidRequest(f"generate: --output {problem}, got {path}; try --output out{allowed[0]}")
    forms = [form for event, (suffix, form) in _FORMS.items() if event in events and suffix == path.suffix]
    return forms[0] if len([event for event in events if event in _FORMS]) > 1 and forms else ""


def write(request: Request, answers: Sequence[Any], path: Path) -> str:
    """Write what a generation gave.

    Args:
        request: that was answered.
        answers: results of a generation, or the events of a session, in their order.
        path: of the file.

    Returns:
        What is in it, for people.

    Raises:
        Unrecoverable: there is nothing of that kind.
    """
    video = next((answer for answer in answers if isinstance(answer, Video)), None)
    if path.suffix == ".mp4" and video is not None:
        write_whole(path, lambda file: file.write(video.data))
        return _described(request, request.result_shape())
    if path.suffix == _ARRAYS:
        arrays = _arrays(answers)
        write_whole(path, lambda file: np.savez(file, **arrays))
        return ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
    frames = _frames(request, answers)
    write_whole(path, lambda file: np.save(file, frames))
    return _described(request, frames.shape)


def hits(answers: Sequence[Any]) -> str:
    """Return what to say of a cache, if there was one."""
    rates = [rate for answer in answers if (rate := getattr(answer, "cache_hit_rate", None)) is not None]
    return f", cache hit rate {rates[-1]:.0%}" if rates else ""


def _described(request: Request, shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return "a video"
    fps = getattr(request, "fps", None)
    return f"{shape[0]} frames, {shape[2]}x{shape[1]}" + (f", {fps} fps" if fps is not None else "")


def _frames(request: Request, answers: Sequence[Any]) -> NDArray[np.uint8]:
    whole = next((answer for answer in answers if isinstance(answer, Frames)), None)
    if whole is not None:
        return whole.array
    parts = [answer for answer in answers if isinstance(answer, FramesPart)]
    if not parts:
        raise Unrecoverable(f"{request.model}: generation must end with a result, got none")
    return join_frames(parts, request.model)


def _arrays(answers: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays of events by name; of several events each name is preceded by the event's number."""
    found = [event_tensors(answer) for answer in answers if isinstance(answer, Event)]
    if len(found) == 1:
        return found[0]
    return {f"{index:03}_{name}": array for index, each in enumerate(found) for name, array in each.items()}
