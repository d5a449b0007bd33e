"""Settings of a video inside its file, so that the file says how it was made.

:func:`with_settings` writes three tags into an MP4 file: `prompt`, `parameters` (one text that other programs
read too) and `slipway` (everything, as JSON). The video is not encoded again, so its packets stay the same
bytes. :func:`read_settings` reads them back from MP4 and PNG files, which may come from anybody.
"""

from __future__ import annotations

import io
import json
import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway_gateway.contents.file_tags import MAX_TAG_BYTES, read_tags
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable

PROMPT, PARAMETERS, SLIPWAY = "prompt", "parameters", "slipway"
_MAX_DEPTH = 8
# "use_metadata_tags" allows names of any kind; "faststart" moves the index to the front, which players need
# before they can begin; "bitexact" keeps the library's version out of the file.
_MP4_OPTIONS = {"movflags": "+faststart+use_metadata_tags", "fflags": "+bitexact"}
# Names of fields in the text `parameters`, in the order in which other programs write them.
_LABELS = {
    "steps": "Steps",
    "guidance_scale": "CFG scale",
    "guidance_scale_2": "CFG scale 2",
    "flow_shift": "Shift",
    "seed": "Seed",
    "frames": "Frames",
    "seconds": "Seconds",
    "fps": "FPS",
}
_FIELDS = {label.lower(): name for name, label in _LABELS.items()}
_NEGATIVE = "Negative prompt: "
_PAIR = re.compile(r'\s*([\w][\w \-/]{0,39}):\s*("(?:\\.|[^\\"])*"|[^,]*)(?:,|$)')
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")


@dataclass(frozen=True)
class VideoSettings:
    """Settings that a video was made with.

    Attributes:
        request: Fields of the request as JSON values, without pictures and states.
        model: Name of the served model; "" if the file does not name one of ours.
        manifest_digest: Digest of the model's manifest, which identifies the exported checkpoint.
        versions: Versions of the software that made the video, by name.
    """

    request: Mapping[str, Any]
    model: str
    manifest_digest: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the file by name."""
        return {PROMPT: _prompt_of(self.request), PARAMETERS: self.parameters, SLIPWAY: self.to_json()}

    @property
    def parameters(self) -> str:
        """Text in the form of AUTOMATIC1111's web UI: prompt, negative prompt, then names and values."""
        request = self.request
        pairs = [(label, request[name]) for name, label in _LABELS.items() if request.get(name) is not None]
        if request.get("width") and request.get("height"):
            pairs.append(("Size", f"{request['width']}x{request['height']}"))
        pairs.append(("Model", self.model))
        if self.manifest_digest:
            pairs.append(("Model hash", self.manifest_digest.rpartition(":")[2][:10]))
        pairs.append(("Version", ", ".join(f"{name} {number}" for name, number in self.versions.items())))
        lines = [_prompt_of(request)]
        if negative := request.get("negative_prompt"):
            lines.append(f"{_NEGATIVE}{negative}")
        lines.append(", ".join(f"{label}: {_quoted(value)}" for label, value in pairs if value != ""))
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return everything as one line of JSON."""
        document = {
            "request": dict(self.request),
            "model": self.model,
            "manifest_digest": self.manifest_digest,
            "versions": dict(self.versions),
        }
        return json.dumps(document, ensure_ascii=False, allow_nan=False)


def with_settings(mp4: bytes, settings: VideoSettings) -> bytes:
    """Return an MP4 file with the settings as tags, and with its index at the front.

    The packets of the video, their times and its colours stay the same. Files in fragments become whole ones.

    Args:
        mp4: MP4 file of a server, whole or in fragments.
        settings: Settings to write.

    Raises:
        InvalidRequest: A tag is too large to be read back.
        Unrecoverable: The file is not a valid MP4 file with a video.
    """
    import av

    tags = settings.tags
    for name, text in tags.items():
        size = len(text.encode())
        if size > MAX_TAG_BYTES:
            raise InvalidRequest(
                f"settings: {name} must be at most {MAX_TAG_BYTES} bytes in a file, got {size}; try a shorter"
                " prompt"
            )
    # This must be a file and no buffer, since moving the index to the front reads the output again.
    with tempfile.TemporaryDirectory(prefix="slipway-gateway-") as folder:
        path = Path(folder) / "video.mp4"
        try:
            with (
                av.open(io.BytesIO(mp4), "r", format="mp4") as source,
                av.open(str(path), "w", format="mp4", options=_MP4_OPTIONS) as target,
            ):
                target.metadata.update(tags)
                stream = source.streams.video[0]
                copy = target.add_stream_from_template(stream)
                copy.time_base = stream.time_base
                frames, packets = stream.frames, 0
                for packet in source.demux(stream):
                    if packet.size:  # the last packet only says that the file has ended
                        packets += 1
                        packet.stream = copy
                        target.mux(packet)
            # The library ends silently where a file breaks off. Files in fragments do not state the number.
            if not packets or (frames and packets != frames):
                raise ValueError(f"it breaks off after {packets} of {frames} frames")  # noqa: TRY301
        except (av.FFmpegError, IndexError, ValueError) as error:
            raise Unrecoverable(
                f"settings: the video must be a valid MP4 file, got one that is not ({error})"
            ) from None
        return path.read_bytes()


def read_settings(data: bytes) -> VideoSettings:
    """Read the settings from an MP4 or PNG file.

    Args:
        data: Bytes of the file, from a caller. If it has no tag `slipway`, its text `parameters` is read.

    Raises:
        InvalidRequest: The file is not an intact MP4 or PNG file, has no settings, or they are malformed or
            too large.
    """
    tags = read_tags(data)
    if SLIPWAY in tags:
        return _from_json(tags[SLIPWAY])
    if PARAMETERS in tags:
        return _from_parameters(tags[PARAMETERS])
    raise InvalidRequest(
        f"settings: file must have a tag {SLIPWAY} or {PARAMETERS}, got one without; try a file that this"
        " server has made"
    )


def _from_json(text: str) -> VideoSettings:
    try:
        document = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        # A text that is not valid Unicode could not be sent back as JSON.
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"settings: {SLIPWAY} must be valid JSON, got {type(error).__name__}") from None
    if not isinstance(document, dict):
        raise _malformed("a JSON object")
    request, model = document.get("request"), document.get("model")
    digest, versions = document.get("manifest_digest"), document.get("versions", {})
    if not isinstance(request, dict) or _is_deeper(request, _MAX_DEPTH):
        raise _malformed(f"an object whose request is an object of at most {_MAX_DEPTH} levels")
    if not isinstance(model, str) or not isinstance(digest, str | None):
        raise _malformed("an object whose model and manifest_digest are texts")
    if not isinstance(versions, dict) or not all(isinstance(number, str) for number in versions.values()):
        raise _malformed("an object whose versions are texts by name")
    return VideoSettings(request, model, digest, versions)


def _from_parameters(text: str) -> VideoSettings:
    """Read the text that other programs write; names that are not known are left out."""
    lines = text.strip().splitlines()
    values = dict(_PAIR.findall(lines[-1])) if lines and _PAIR.match(lines[-1]) else {}
    known = {label.lower(): _plain(value) for label, value in values.items()}
    body = lines[:-1] if "steps" in known else lines
    request: dict[str, Any] = {}
    start = next((place for place, line in enumerate(body) if line.startswith(_NEGATIVE.strip())), len(body))
    request["prompt"] = "\n".join(body[:start])
    if start < len(body):
        request["negative_prompt"] = "\n".join(body[start:]).removeprefix(_NEGATIVE.strip()).strip()
    if "steps" not in known:
        return VideoSettings(request, "")
    for label, value in known.items():
        number = _number(value)
        if label in _FIELDS and number is not None:
            request[_FIELDS[label]] = number
    if size := _SIZE.fullmatch(known.get("size", "")):
        request["width"], request["height"] = int(size[1]), int(size[2])
    return VideoSettings(request, known.get("model", ""))


def _prompt_of(request: Mapping[str, Any]) -> str:
    return str(request.get("prompt") or "")


def _quoted(value: Any) -> str:
    """Return a value as text, in quotes where its characters would end it."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return json.dumps(text, ensure_ascii=False) if set(text) & set(',:\n"') else text


def _plain(value: str) -> str:
    """Return a value without the quotes of :func:`_quoted`."""
    if value.startswith('"'):
        try:
            return str(json.loads(value))
        except ValueError:
            return value
    return value.strip()


def _number(text: str) -> int | float | None:
    if len(text) > 24:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(text) if text.lstrip("-").isdigit() else number


def _is_deeper(value: Any, levels: int) -> bool:
    """Return True if a JSON value has more nested levels than allowed."""
    row = [value]
    for _ in range(levels):
        row = [
            part
            for each in row
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, dict | list) for each in row)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large")
    return number


def _malformed(rule: str) -> InvalidRequest:
    return InvalidRequest(f"settings: {SLIPWAY} must be {rule}, got something else; try an unchanged file")
