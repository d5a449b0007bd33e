"""Creation of a video's request from the fields that a caller sends.

The fields of the API become those of the request class of the asked model: other names are translated, a size
becomes width and height, and a length becomes a number of frames. What the caller leaves out takes the served
model's usual value, then the default of the class; a seed is always chosen. Every broken rule is named before
a job exists.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipway_client.served_model import ServedModel
from slipway_gateway.errors import ApiError
from slipway_gateway.fields.kinds import ALIASES, PICTURE, SECONDS, SIDES, SIZE, VideoKind
from slipway_gateway.fields.parsing import convert
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.protocol.fields import Field, Image
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.texts import short

_SIZE = re.compile(r"(\d{1,6})\s*[x*]\s*(\d{1,6})", re.IGNORECASE)
_LARGEST_SEED = 2**31 - 1
# The rules of frame numbers have steps of a few frames; this bounds the search for the next allowed one.
_FRAME_SEARCH = 64


@dataclass(frozen=True)
class Creation:
    """Request for a video that has passed all checks.

    Attributes:
        kind: Kind of the video.
        request: Request of the served model.
        values: Fields of the request as JSON values. A picture is ``{"content": name}``: it is a content of
            the job.
        pictures: Bytes of each picture, by the name of the content.
        seed: Seed of the video.
        width: Width of the video, in pixels.
        height: Height of the video, in pixels.
        frames: Number of frames.
        fps: Frames per second.
        steps: Number of denoising steps; 1 if the request does not say.
    """

    kind: VideoKind
    request: Request
    values: dict[str, Any]
    pictures: Mapping[str, bytes]
    seed: int
    width: int
    height: int
    frames: int
    fps: int
    steps: int


def chosen_model(
    given: Any, names: set[str], kinds: Mapping[str, VideoKind], served: Mapping[str, ServedModel]
) -> VideoKind:
    """Return the kind of video that a caller asks for.

    Without a model, it is the only served model, or the one whose required fields the caller gives.

    Args:
        given: Model that the caller names, or None.
        names: Names of the fields that the caller gives.
        kinds: Kinds of videos.
        served: Models that a server has, or had when it was last seen.

    Raises:
        ApiError: No such model is served, or several fit.
        InvalidRequest: The name is no text.
    """
    available = {name: kind for name, kind in kinds.items() if name in served}
    if given not in (None, ""):
        if not isinstance(given, str):
            raise InvalidRequest(f"videos: model must be a text, got {short(given)}; try the name of a model")
        if given not in available:
            listed = ", ".join(sorted(available)) or "none at the moment"
            raise ApiError(
                f"videos: model must be one that is served ({listed}), got {short(given)}; try GET"
                " /v1/models",
                status=404,
                code="model_not_found",
                param="model",
                final=True,
            )
        return available[given]
    fitting = [kind for kind in available.values() if _fits(kind, names, served[kind.model])]
    if not fitting and len(available) == 1:
        # The check of its fields says more than that no model fits.
        fitting = list(available.values())
    if len(fitting) == 1:
        return fitting[0]
    if not available:
        raise ApiError(
            "videos: no server with a model for videos is known yet; try again when one is ready",
            status=503,
            code="no_model",
            retry_after_s=5,
        )
    listed = ", ".join(sorted(available))
    raise ApiError(
        f"videos: model must be given, one of {listed}, got none; try model={sorted(available)[0]}",
        status=400,
        code="missing_field",
        param="model",
    )


def _fits(kind: VideoKind, names: set[str], served: ServedModel) -> bool:
    if not kind.pictures and PICTURE in names:
        return False
    for name, picture in kind.pictures.items():
        fewest, most = picture.range(served)
        if not fewest <= bool({name, picture.public_name} & names) <= most:
            return False
    return all(
        field.optional or name in names or name in kind.pictures for name, field in kind.fields.items()
    )


def create(kind: VideoKind, given: Mapping[str, Any], served: ServedModel, highest_priority: str) -> Creation:
    """Make the request for a video from a caller's fields.

    Args:
        kind: Kind of the video.
        given: Fields of the caller, without the model; a picture is bytes.
        served: Usual values and ranges of the served model.
        highest_priority: Priority of a request that does not state one, unless it is above "normal".

    Raises:
        InvalidRequest: A field is unknown, missing, or breaks its rule; the message names all of them.
    """
    translated, sources, problems = _translate(kind, given)
    values: dict[str, Any] = {}
    for name, value in translated.items():
        if (field := kind.fields.get(name)) is None:
            problems.append(_unknown(kind, name))
            continue
        if isinstance(field.rule, Image):
            values[name], problem = _checked_picture(field, value, kind.public_name(name))
        else:
            values[name], problem = convert(field, value)
            problem = problem or ("" if values[name] is None else field.problem(values[name]))
            # The caller knows the field by the name that it has sent.
            problem = f"{sources[name]}{problem.removeprefix(name)}" if problem else ""
        problems += [problem] if problem else []
    problems += [
        f"{kind.public_name(field.name)} must be given, got nothing; try giving {field.rule.help}"
        for field in kind.fields.values()
        if not field.optional and field.name not in translated
    ]
    for name, picture in kind.pictures.items():
        if picture.field.optional:
            is_given = name in translated
            problems += served.picture_problems(name, picture.public_name, is_given=is_given)
    raise_all(kind.model, problems)
    values = {name: value for name, value in values.items() if value is not None}
    _fill(kind, values, given, served, highest_priority)
    request = kind.request(**values, **({"output": kind.output} if kind.output else {}))
    raise_all(kind.model, served.problems(request))
    return _described(kind, request, values)


def _translate(kind: VideoKind, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Translate a caller's fields to those of the request class.

    Returns:
        The values, the names by which the caller sent them, and a sentence about each field that fails.
    """
    found: dict[str, Any] = {}
    sources: dict[str, str] = {}
    problems: list[str] = []

    def put(name: str, value: Any, source: str) -> None:
        if name in found and str(found[name]) != str(value):
            problems.append(
                f"{source} must agree with {sources[name]} ({short(found[name])}), got {short(value)};"
                " try one of them"
            )
        found[name], sources[name] = value, source

    for name, value in given.items():
        if name == SIZE and kind.has_sides and name not in kind.fields:
            match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
            if match is None:
                problems.append(f"size must be WIDTHxHEIGHT in pixels, got {short(value)}; try 832x480")
                continue
            for side, length in zip(SIDES, match.groups(), strict=True):
                put(side, length, SIZE)
        elif name == PICTURE and kind.picture is not None:
            put(kind.picture.field.name, value, PICTURE)
        elif name == SECONDS and name not in kind.fields and "frames" in kind.fields:
            continue  # It becomes a number of frames when the frames per second are known.
        else:
            put(ALIASES.get(name, name) if ALIASES.get(name) in kind.fields else name, value, name)
    return found, sources, problems


def _unknown(kind: VideoKind, name: str) -> str:
    others = {other for other, own in ALIASES.items() if own in kind.fields}
    others |= {SIZE} if kind.has_sides else set()
    others |= {PICTURE} if kind.pictures else set()
    others |= {SECONDS} if "frames" in kind.fields else set()
    known = ", ".join(sorted({*kind.fields, *others, "model"}))
    return (
        f"{short(name).strip(chr(39))} must be a field of the model, got an unknown field; try one of {known}"
    )


def _checked_picture(field: Field, value: Any, public_name: str) -> tuple[bytes | None, str]:
    if not isinstance(value, bytes):
        return None, f"{public_name} must be a picture file, a URL or a data URL, got {short(value)}"
    problem = field.problem(value)
    return value, f"{public_name}{problem.removeprefix(field.name)}" if problem else ""


def _fill(
    kind: VideoKind,
    values: dict[str, Any],
    given: Mapping[str, Any],
    served: ServedModel,
    highest_priority: str,
) -> None:
    """Add what the caller left out: usual values, the frames of a length, the seed and the priority."""
    sides_are_given = any(side in values for side in SIDES)
    for name, value in served.usual.items():
        # A picture decides the size of its video, unless the caller states one; half a size stays an error.
        is_side_of_given = name in SIDES and sides_are_given
        if name in kind.fields and name not in values and not is_side_of_given:
            values[name] = value
    if SECONDS in given and SECONDS not in kind.fields and "frames" in kind.fields:
        values["frames"] = _frames(
            kind, values, given[SECONDS], served, stated="frames" in given or "num_frames" in given
        )
    if "seed" in kind.fields and "seed" not in values:
        values["seed"] = secrets.randbelow(_LARGEST_SEED)
    if "priority" in kind.fields and "priority" not in values and highest_priority == "low":
        values["priority"] = "low"
    if kind.can_stop and values.get("stop_after_step") is not None:
        values.setdefault("draft", "video")


def _frames(
    kind: VideoKind, values: dict[str, Any], seconds: Any, served: ServedModel, *, stated: bool
) -> int:
    """Return the smallest allowed number of frames that lasts a length.

    Raises:
        InvalidRequest: The length is not a number, contradicts a number of frames, or is out of range.
    """
    field, default = kind.fields["frames"], kind.fields.get("fps")
    rate = values.get("fps", default.default if default is not None else None) or 16
    try:
        length_s = float(seconds)
    except (TypeError, ValueError):
        length_s = float("nan")
    if not 0 < length_s <= 86_400:
        raise InvalidRequest(f"{kind.model}: seconds must be a number above 0, got {short(seconds)}; try 2")
    least = max(1, int(np.ceil(length_s * rate - 1e-6)))
    frames = next((n for n in range(least, least + _FRAME_SEARCH) if not field.problem(n)), least)
    if stated:
        if values["frames"] != frames:
            raise InvalidRequest(
                f"{kind.model}: seconds must agree with frames ({values['frames']} at {rate} per second), got"
                f" {short(seconds)}; try one of them"
            )
        return frames
    low, high = served.ranges.get("frames", (1, frames))
    if not low <= frames <= high:
        raise InvalidRequest(
            f"{kind.model}: seconds must be {low / rate:.3g} to {high / rate:.3g} at {rate} frames per"
            f" second, the range of the exported models, got {short(seconds)}; try {high / rate:.3g}"
        )
    return frames


def _described(kind: VideoKind, request: Request, values: Mapping[str, Any]) -> Creation:
    """Return the checked request with what a job says about its video."""
    try:
        shape = request.result_shape()
    except InvalidRequest:
        raise
    except Exception as error:  # noqa: BLE001  (a picture's decoder raises many kinds of errors)
        raise InvalidRequest(f"{kind.model}: {PICTURE} must be a whole picture, got {error}") from None
    frames, height, width = (shape or (0, 0, 0, 3))[:3]
    if kind.output == "frames" and (height % 2 or width % 2):
        raise InvalidRequest(
            f"{kind.model}: size must be even in both directions, since the video becomes an MP4 file, got"
            f" {width}x{height}; try {width + width % 2}x{height + height % 2}"
        )
    contents = {name: kind.pictures[name].content for name in values if name in kind.pictures}
    stored: dict[str, Any] = {}
    for name in kind.fields:
        value = getattr(request, name)
        if name in contents:
            stored[name] = {"content": contents[name]}
        else:
            stored[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return Creation(
        kind=kind,
        request=request,
        values=stored,
        pictures={content: values[name] for name, content in contents.items()},
        seed=int(getattr(request, "seed", 0)),
        width=int(width),
        height=int(height),
        frames=int(frames),
        fps=kind.frame_rate(request),
        steps=int(getattr(request, "steps", 1)),
    )


def rebuilt_values(
    kind: VideoKind, stored: Mapping[str, Any], pictures: Mapping[str, bytes | None]
) -> dict[str, Any]:
    """Return the fields of a request class from those that a job stores.

    Args:
        kind: Kind of the video.
        stored: Fields as :attr:`Creation.values`.
        pictures: Bytes of each picture, by the name of the field.
    """
    values: dict[str, Any] = {}
    for name, field in kind.fields.items():
        value = stored.get(name, field.default)
        if name in kind.pictures:
            value = pictures.get(name)
        elif value is not None:
            value, _ = convert(field, value)
        values[name] = value
    return values
