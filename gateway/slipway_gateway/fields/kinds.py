"""Kinds of videos that the API can make: the request classes of all families that yield frames or a file.

A kind is a request class with what the API derives from it: which fields take pictures, which fields the
gateway sets itself, and the names that other video APIs use for a field. A family of another distribution
appears here as soon as it is registered.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slipway_client.served_model import ServedModel
from slipway_export.families import families
from slipway_gateway.contents.store import INPUTS
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.events import FramesPart, VideoPart
from slipway_serving.protocol.fields import Field, Image, fields_of
from slipway_serving.protocol.requests import Request

ALIASES = {"num_frames": "frames", "num_inference_steps": "steps"}
"""Names that other video APIs use for fields of the request classes."""
SECONDS, SIZE, PICTURE = "seconds", "size", "input_reference"
"""Fields of the API that stand for other fields: a length, a width with a height, and the first picture."""
SIDES = ("width", "height")
_OWN = frozenset({"continue_from", "steps_seen", "output", "preview"})
"""Fields that the gateway sets itself."""
_USUAL_FPS = 16


@dataclass(frozen=True)
class PictureField:
    """Field of a request class that takes a picture.

    Attributes:
        field: Field of the request class.
        public_name: Name by which callers know it: the first picture has that of other video APIs.
        content: Name of the content of a job that has the picture.
    """

    field: Field
    public_name: str
    content: str

    def range(self, served: ServedModel) -> tuple[int, int]:
        """Return the fewest and most pictures, 0 or 1, that a model takes.

        A checkpoint that can do without a picture says if it takes one.
        """
        return served.ranges.get(self.field.name, (0, 0) if self.field.optional else (1, 1))


@dataclass(frozen=True)
class VideoKind:
    """Request class of one kind of video.

    Attributes:
        family: Name of the family.
        request: Class of the request.
    """

    family: str
    request: type[Request]

    @property
    def model(self) -> str:
        """Name of the served model."""
        return self.request.model

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        """Fields that a caller may give, by their names in the request class."""
        fields = fields_of(self.request)
        pictures = [field.name for field in fields if isinstance(field.rule, Image)]
        left_out = {*_OWN, *pictures[len(INPUTS) :]}
        return {field.name: field for field in fields if field.name not in left_out}

    @cached_property
    def pictures(self) -> Mapping[str, PictureField]:
        """Fields that take pictures, in their order, by their names in the request class."""
        fields = (field for field in self.fields.values() if isinstance(field.rule, Image))
        return {
            field.name: PictureField(field, field.name if place else PICTURE, content)
            for place, (field, content) in enumerate(zip(fields, INPUTS, strict=False))
        }

    @property
    def picture(self) -> PictureField | None:
        """Field that takes the first picture; None for a kind without pictures."""
        return next(iter(self.pictures.values()), None)

    def public_name(self, name: str) -> str:
        """Return the name by which callers know a field of the request class."""
        return self.pictures[name].public_name if name in self.pictures else name

    @property
    def has_sides(self) -> bool:
        """True if the caller may give width and height."""
        return all(side in self.fields for side in SIDES)

    @property
    def can_stop(self) -> bool:
        """True if such a video can be stopped after a step and continued."""
        return issubclass(self.request, DenoisingRequest)

    @property
    def summary(self) -> str:
        """First line of the request's documentation."""
        return (inspect.getdoc(self.request) or self.model).partition("\n")[0]

    @cached_property
    def output(self) -> str | None:
        """Form in which the result is asked for: an MP4 file if the model makes one, else frames."""
        field = next((each for each in fields_of(self.request) if each.name == "output"), None)
        if field is None:
            return None
        return "video" if VideoPart in self.request.events else "frames"

    def frame_rate(self, request: Any) -> int:
        """Return the frames per second of a request's video."""
        return int(getattr(request, "fps", 0) or _USUAL_FPS)


def video_kinds() -> dict[str, VideoKind]:
    """Return the kinds of videos by the name of their model."""
    return {
        request.model: VideoKind(family.name, request)
        for family in families()
        for request in family.requests
        if request.turn is None and request.streams and set(request.events) & {VideoPart, FramesPart}
    }
