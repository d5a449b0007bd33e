"""Events that a served model answers with: progress, frames, files and other arrays.

The server and the clients share these classes. An event is a frozen dataclass with annotated fields like
those of a request, and the outputs in ``config.pbtxt`` follow from them. :func:`tensors` makes an event's
tensors, and :func:`read` rebuilds the event from a response. A stream of frames may be endless and out of
time order: each part states its first frame and whether it is final. A finite video in time order is one case
of this. An error ends a stream: it crosses as the text of
:meth:`SlipwayError.to_wire <slipway_serving.protocol.errors>`, and the reader of the events raises it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol import texts
from slipway_serving.protocol.errors import Malformed
from slipway_serving.protocol.fields import Array, Field, Rule, agreement_problems, encode, fields_of

E = TypeVar("E", bound="Event")
Pixels = NDArray[np.uint8]

BASE64 = "_base64"
"""Suffix of the names of result forms that are base64 text, for protocols that carry text only."""


class Base64Text(bytes):
    """Bytes that are base64 text already, so no protocol encodes them again."""


class Binary(bytes):
    """Bytes of a binary field, which protocols that carry only text encode as base64."""


def output_field(help_text: str, datatype: str = "", *, may_be_base64: bool = False) -> Rule:
    """Describe a scalar field of an event, without a check of its value since the server produces it.

    Args:
        help_text: Description for people.
        datatype: Triton's name of the element type, if it is not the usual one of the field's type.
        may_be_base64: True if the field carries base64 text when the request asks for text. The reader of
            the field decodes it then; :func:`read` decodes all other binary fields.
    """
    return Rule(
        "anything",
        lambda _: True,
        lambda _: "",
        help_text,
        datatype=datatype,
        may_be_base64=may_be_base64,
    )


def as_base64(data: bytes) -> Base64Text:
    """Encode bytes as base64 text."""
    return Base64Text(base64.b64encode(data))


class Event:
    """Base of event dataclasses.

    Attributes:
        known_by: Names of fields, any one of which identifies this event.
    """

    known_by: ClassVar[tuple[str, ...]] = ()


WAITING, SET_ASIDE = "waiting", "set aside"
"""Phases of a request that has no slot to work in, see :class:`Progress`."""

_ELAPSED = output_field("time since the work began, in seconds")
_HEIGHT, _WIDTH = (
    output_field(f"{side} of the pictures, in pixels", "INT32") for side in ("height", "width")
)
_HIT_RATE = output_field("share of the denoiser's evaluations that reused the first-block cache, 0 to 1")
_CHUNK = output_field("number of the part, 0 to chunks - 1, in sending order", "INT32")
_CHUNKS = output_field("number of parts", "INT32")
_FIRST_FRAME = output_field("index of the first frame in the video, from 0", "INT32")
_DRAFT_STEP = output_field("number of steps that a draft comes after; none for a final result", "INT32")
_FRAMES_TOTAL = output_field("number of frames in the whole video, if known", "INT32")


@dataclass(frozen=True)
class Progress(Event):
    """Notice that a step of the work is done.

    Attributes:
        step: Number of the finished step, 1 to `steps`.
        steps: Number of steps.
        elapsed_s: Time since the work began, in seconds.
        preview: Picture of the current state, [height, width, 3], uint8; None unless requested.
        height: Height of the preview, in pixels; set from `preview`.
        width: Width of the preview, in pixels; set from `preview`.
        phase: :data:`WAITING` until the request has a slot to work in, or :data:`SET_ASIDE` while a more
            urgent request has its slot; None after a step.
    """

    known_by: ClassVar[tuple[str, ...]] = ("step",)

    step: Annotated[int, output_field("number of the finished step, 1 to steps", "INT32")]
    steps: Annotated[int, output_field("number of steps", "INT32")]
    elapsed_s: Annotated[float, _ELAPSED]
    preview: Annotated[
        Pixels | None, Array("uint8", ("height", "width", 3), "RGB picture of the current state")
    ] = None
    height: Annotated[int | None, _HEIGHT] = None
    width: Annotated[int | None, _WIDTH] = None
    phase: Annotated[str | None, output_field("waiting or set aside, if no step was done")] = None

    def __post_init__(self) -> None:
        _set_size(self, self.preview)


@dataclass(frozen=True)
class FramesPart(Event):
    """Consecutive frames of a video.

    Attributes:
        frames: Pixels, [frames, height, width, 3], uint8, RGB; None where `frames_base64` replaces them.
        first_frame: Index of the first of these frames in the video, from 0.
        elapsed_s: Time since the work began, in seconds.
        final: True if no later part changes these frames; a later part replaces frames of an earlier one.
        frames_total: Number of frames in the whole video; None if unknown, as in a world that goes on.
        chunk: Index of the part in sending order, 0 to `chunks` - 1; None if the end is not known.
        chunks: Number of parts.
        cache_hit_rate: Share of the denoiser's evaluations that reused the first-block cache; None without
            a cache.
        frames_base64: Pixels as base64 text, in place of `frames`, for protocols that carry text only.
        height: Height of a frame, in pixels; set from `frames` where they are given.
        width: Width of a frame, in pixels; set from `frames` where they are given.
        draft_step: Number of steps after which these frames were predicted, if they are a draft.
    """

    known_by: ClassVar[tuple[str, ...]] = ("frames", "frames_base64")

    frames: Annotated[Pixels | None, Array("uint8", ("frames", "height", "width", 3), "RGB pixels")]
    first_frame: Annotated[int, _FIRST_FRAME]
    elapsed_s: Annotated[float, _ELAPSED]
    final: Annotated[bool, output_field("true if no later part changes these frames")] = True
    frames_total: Annotated[int | None, _FRAMES_TOTAL] = None
    chunk: Annotated[int | None, _CHUNK] = None
    chunks: Annotated[int | None, _CHUNKS] = None
    cache_hit_rate: Annotated[float | None, _HIT_RATE] = None
    frames_base64: Annotated[bytes | None, output_field("the frames as base64 text", may_be_base64=True)] = (
        None
    )
    height: Annotated[int | None, _HEIGHT] = None
    width: Annotated[int | None, _WIDTH] = None
    draft_step: Annotated[int | None, _DRAFT_STEP] = None

    def __post_init__(self) -> None:
        _set_size(self, self.frames)

    @property
    def pixels(self) -> Pixels:
        """Frames as uint8 pixels, [frames, height, width, 3], decoded if they came as base64 text.

        Raises:
            Malformed: The part has no frames, or the text is not base64 of frames of that size.
        """
        if self.frames is not None:
            return self.frames
        raw = _from_base64(self.frames_base64 or b"", "frames")
        try:
            return np.frombuffer(raw, np.uint8).reshape(-1, self.height or 0, self.width or 0, 3)
        except (ValueError, OverflowError):
            size = f"{self.height}x{self.width}"
            raise Malformed(f"frames must be whole ones of {size} pixels, got {len(raw)} bytes") from None

    def as_text(self) -> FramesPart:
        """Return the part with its frames as base64 text."""
        return replace(self, frames=None, frames_base64=as_base64(self.pixels.tobytes()))


@dataclass(frozen=True)
class VideoPart(Event):
    """Part of an MP4 file as bytes or base64 text; the base64 text of each part can be decoded by itself.

    Parts with a `first_frame` are whole fragments of the file and may arrive out of time order. Joined in
    time order, they are the file.

    Attributes:
        chunk: Index of the part in sending order, 0 to `chunks` - 1.
        chunks: Number of parts; None if the end is not known.
        elapsed_s: Time since the work began, in seconds.
        video: Bytes of the part, or base64 text of them.
        cache_hit_rate: Share of reused evaluations as in :class:`FramesPart`.
        first_frame: Index of the first frame in the video, from 0; None for a part that is cut anywhere.
        part_frames: Number of frames in a part with a `first_frame`.
        frames_total: Number of frames in the whole video.
        draft_step: Number of steps after which the video was predicted, if it is a draft.
    """

    known_by: ClassVar[tuple[str, ...]] = ("video",)

    chunk: Annotated[int, _CHUNK]
    chunks: Annotated[int | None, _CHUNKS]
    elapsed_s: Annotated[float, _ELAPSED]
    video: Annotated[bytes, output_field("bytes of an MP4 file, or base64 text of them", may_be_base64=True)]
    cache_hit_rate: Annotated[float | None, _HIT_RATE] = None
    first_frame: Annotated[int | None, _FIRST_FRAME] = None
    part_frames: Annotated[
        int | None, output_field("number of frames, in a part that is a complete fragment", "INT32")
    ] = None
    frames_total: Annotated[int | None, _FRAMES_TOTAL] = None
    draft_step: Annotated[int | None, _DRAFT_STEP] = None

    def data(self, form: str) -> bytes:
        """Return this part's bytes of the file, decoded from base64 if needed.

        Args:
            form: Form of result that the request asked for; base64 text if it ends in "_base64".

        Raises:
            Malformed: The text is not base64.
        """
        return _from_base64(self.video, "video") if form.endswith(BASE64) else self.video


@dataclass(frozen=True)
class Picture(Event):
    """Finished picture, the whole result of a request.

    Attributes:
        picture: Pixels, [height, width, 3], uint8, RGB.
        elapsed_s: Time since the work began, in seconds.
        height: Height of the picture, in pixels; set from `picture`.
        width: Width of the picture, in pixels; set from `picture`.
    """

    known_by: ClassVar[tuple[str, ...]] = ("picture",)

    picture: Annotated[Pixels, Array("uint8", ("height", "width", 3), "RGB pixels")]
    elapsed_s: Annotated[float, _ELAPSED]
    height: Annotated[int | None, _HEIGHT] = None
    width: Annotated[int | None, _WIDTH] = None

    def __post_init__(self) -> None:
        _set_size(self, self.picture)


def tensors(event: Event) -> dict[str, NDArray[Any]]:
    """Return an event's output tensors by field name, without fields that are None.

    Values of binary fields become :class:`Binary`, so that :func:`to_wire_form` recognises them.
    """
    outputs = encode(event)
    for each in fields_of(type(event)):
        value = getattr(event, each.name)
        if each.kind is bytes and each.name in outputs and not isinstance(value, Base64Text):
            array = outputs[each.name]
            array[...] = Binary(array.reshape(-1)[0])
    return outputs


def to_wire_form(array: NDArray[Any], *, as_text: bool) -> NDArray[Any]:
    """Convert an output tensor to the form that the protocol carries.

    Args:
        array: Tensor of an event.
        as_text: True if the protocol carries text only; :class:`Binary` becomes base64 text then.
    """
    if array.dtype != np.object_ or not any(isinstance(element, bytes) for element in array.flat):
        return array
    # Triton's library does not accept subclasses of bytes.
    plain = np.empty(array.shape, np.object_)
    for index, element in np.ndenumerate(array):
        encode_it = as_text and isinstance(element, Binary)
        plain[index] = base64.b64encode(element) if encode_it else texts.to_bytes(element)
    return plain


def output_fields(events: Sequence[type[Event]]) -> tuple[Field, ...]:
    """List the outputs of a model that answers with these events; a field of several events counts once.

    Raises:
        TypeError: Two events have a field of the same name with different types.
    """
    found: dict[str, Field] = {}
    for event in events:
        for each in fields_of(event):
            known = found.setdefault(each.name, each)
            if (known.datatype, known.shape) != (each.datatype, each.shape):
                raise TypeError(f"{event.__name__}.{each.name} must be {known.datatype} {known.shape}")
    return tuple(found.values())


def read(
    events: Sequence[type[Event]],
    response: Mapping[str, NDArray[Any]],
    where: str,
    *,
    as_text: bool = False,
) -> Event:
    """Convert a response into the event that it carries.

    Args:
        events: Event classes that the model answers with.
        response: Arrays by output name, possibly flat, as JSON carries them. Outputs that no field describes
            come from a newer server and are ignored.
        where: Name of the model, for messages.
        as_text: True if the protocol carries text only, so bytes came as base64; see :func:`to_wire_form`.

    Raises:
        Malformed: The response is none of these events, or lacks a field.
    """
    for event in events:
        if not event.known_by or any(name in response for name in event.known_by):
            return _event(event, response, where, as_text=as_text)
    expected = ", ".join(name for event in events for name in event.known_by[:1])
    got = ", ".join(sorted(response)) or "nothing"
    raise Malformed(f"{where}: response must carry one of {expected}, got {got}; see the server's log")


def _event(event: type[E], response: Mapping[str, NDArray[Any]], where: str, *, as_text: bool) -> E:
    """Build an event of a class from a response; raise Malformed if a field is missing or wrong."""
    values: dict[str, Any] = {}
    for each in fields_of(event):
        array = response.get(each.name)
        if array is None:
            if not each.optional and not each.nullable:
                raise Malformed(
                    f"{where}: {event.__name__} must carry {each.name}, got"
                    f" {', '.join(sorted(response)) or 'nothing'}; see the server's log"
                )
            values[each.name] = None if each.nullable else each.default
        elif isinstance(each.rule, Array):
            values[each.name] = _shaped(each.rule, array, response, where, each.name)
        else:
            values[each.name] = _scalar(each, array, where, as_text=as_text)
    if problems := agreement_problems(values, fields_of(event)):
        raise Malformed(f"{where}: {problems[0]}")
    return event(**values)


_KINDS: dict[type, str] = {str: "OSU", bytes: "OS", int: "iu", float: "fiu", bool: "b"}
"""NumPy dtype kinds that are accepted for a scalar of each type; JSON writes 2.0 as 2."""


def _scalar(each: Field, array: NDArray[Any], where: str, *, as_text: bool) -> Any:
    """Return the value of a scalar field from its tensor, in the field's Python type."""
    if array.size != 1:
        raise Malformed(f"{where}: {each.name} must be one value, got shape {list(array.shape)}")
    value = array.reshape(-1)[0]
    if array.dtype.kind not in _KINDS[each.kind]:
        raise Malformed(
            f"{where}: {each.name} must be {each.datatype}, got {array.dtype} {texts.short(value)}"
        )
    if each.kind is str:
        text, problem = texts.read(each.name, value)
        if text is None:
            raise Malformed(f"{where}: {problem}")
        return text
    if each.kind is bytes and not isinstance(value, bytes):
        raise Malformed(f"{where}: {each.name} must be bytes, got {texts.short(value)}")
    read_later = isinstance(each.rule, Rule) and each.rule.may_be_base64
    if as_text and each.kind is bytes and not read_later:
        return _from_base64(value, f"{where}: {each.name}")
    convert: Callable[[Any], Any] = each.kind
    return convert(value)


def _shaped(
    rule: Array, array: NDArray[Any], response: Mapping[str, NDArray[Any]], where: str, name: str
) -> NDArray[Any]:
    """Reshape an array by its rule; the output named after an axis gives the size of the axis."""
    array = _typed(rule, array, where, name)
    if array.ndim != len(rule.shape):
        shape = [_axis(axis, name, response, where) for axis in rule.shape]
        try:
            array = array.reshape(shape)
        except (ValueError, OverflowError):
            raise Malformed(
                f"{where}: {name} must have the shape {shape} that comes with it, got {array.size} values"
            ) from None
    if not rule.has_shape(array.shape):
        raise Malformed(
            f"{where}: {name} must be [{', '.join(map(str, rule.shape))}], got {list(array.shape)}"
        )
    return array


def _typed(rule: Array, array: NDArray[Any], where: str, name: str) -> NDArray[Any]:
    """Convert an array to the element type of its rule, since JSON carries wider types."""
    if rule.dtype == "text":
        strings, problem = texts.read_all(name, array)
        if strings is None:
            raise Malformed(f"{where}: {problem}")
        return strings
    wanted = np.dtype(rule.numpy)
    allowed = "fiu" if wanted.kind == "f" else "b" if wanted.kind == "b" else "iu"
    # An empty array from JSON has no element type.
    if array.size and array.dtype.kind not in allowed:
        raise Malformed(f"{where}: {name} must be {rule.dtype}, got {array.dtype}")
    if array.size and wanted.kind in "iu":
        bounds = np.iinfo(wanted)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise Malformed(
                f"{where}: {name} must be {rule.dtype}, got values from {array.min()} to {array.max()}"
            )
    return array.astype(wanted, copy=False)


def _axis(axis: int | str, name: str, response: Mapping[str, NDArray[Any]], where: str) -> int:
    """Return the size of an axis from the output named after it; -1 if there is no such output."""
    if isinstance(axis, int):
        return axis
    size_tensor = response.get(axis) if axis != name else None
    if size_tensor is None:
        return -1
    if size_tensor.size != 1 or size_tensor.dtype.kind not in "iu" or size_tensor.reshape(-1)[0] < 0:
        raise Malformed(
            f"{where}: {axis} must be one whole number of at least 0, got {texts.short(size_tensor)}"
        )
    return int(size_tensor.reshape(-1)[0])


def _set_size(event: Progress | FramesPart | Picture, pixels: Pixels | None) -> None:
    """Set an event's height and width from its pixels."""
    if pixels is not None:
        object.__setattr__(event, "height", pixels.shape[-3])
        object.__setattr__(event, "width", pixels.shape[-2])


def _from_base64(text: bytes, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error is a ValueError; characters beyond ASCII raise a plain one.
        raise Malformed(f"{name} must be base64 text, got something else ({error})") from None
