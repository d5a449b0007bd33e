"""Models that answer with bytes; imported by the tests and copied beside their model.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from slipway_serving.protocol.events import BASE64, Event, FramesPart, VideoPart, as_base64, output_field
from slipway_serving.protocol.events import tensors as tensors_of
from slipway_serving.protocol.requests import Request, decode, encode
from slipway_serving.protocol.rules import one_of
from slipway_serving.runtime.program import Call, Responses, Settings

EVERY_BYTE = bytes(range(256))
TEXT_IN_BYTES = b"aGVsbG8="
"""Bytes that are base64 text of something else: whoever guesses by the value decodes them once too often."""


@dataclass(frozen=True)
class Sketch(Event):
    """An event of bytes as a family of another distribution writes it: nothing says that they are no text."""

    known_by: ClassVar[tuple[str, ...]] = ("sketch",)

    sketch: Annotated[bytes, output_field("bytes of a picture")]
    more: Annotated[bytes | None, output_field("further bytes")] = None
    title: Annotated[str, output_field("what the picture shows")] = ""


@dataclass(frozen=True)
class Draw(Request):
    """Ask for a sketch, and for a video in one of two forms."""

    model: ClassVar[str] = "draw"
    events: ClassVar[tuple[type[Event], ...]] = (Sketch, VideoPart, FramesPart)

    output: Annotated[str, one_of(("video", f"video{BASE64}"), "form of the video")] = "video"


@dataclass(frozen=True)
class Relay(Draw):
    """The same by a model that asks the other one."""

    model: ClassVar[str] = "relay"


class Drawing:
    """Answers with bytes, with text, and with a video in the form that was asked for."""

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model

    def run(self, call: Call) -> Responses:
        """Yield a sketch and a part of a video."""
        as_text = decode(Draw, call.tensors, self._model).output.endswith(BASE64)
        yield tensors_of(Sketch(EVERY_BYTE, TEXT_IN_BYTES, "zażółć"))
        yield tensors_of(VideoPart(0, 1, 0.5, as_base64(EVERY_BYTE) if as_text else EVERY_BYTE))

    def close(self) -> None:
        """Hold nothing."""


class Relaying(Drawing):
    """Hands on the bytes that another model answers with."""

    def run(self, call: Call) -> Responses:
        """Yield the sketch of the other model as an event of this one."""
        for found in call.models.stream("draw", encode(Draw()), ["sketch", "more", "title"]):
            if "sketch" in found:
                sketch, more, title = (found[name].reshape(-1)[0] for name in ("sketch", "more", "title"))
                yield tensors_of(Sketch(bytes(sketch), bytes(more), title.decode()))
