"""Bytes of events on their way through protocols that carry bytes, and through those that carry text only."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest

from slipway_serving.protocol.events import (
    Event,
    FramesPart,
    VideoPart,
    as_base64,
    output_field,
    read,
    tensors,
    to_wire_form,
)

DATA = b"aGVsbG8="  # base64 text of something else


@dataclass(frozen=True)
class Sketch(Event):
    """Bytes, a text and nothing."""

    sketch: Annotated[bytes, output_field("bytes")]
    title: Annotated[str, output_field("text")] = "zażółć"
    more: Annotated[bytes | None, output_field("further bytes")] = None


def cross(event: Event, *, as_text: bool) -> dict[str, Any]:
    return {name: to_wire_form(array, as_text=as_text) for name, array in tensors(event).items()}


@pytest.mark.parametrize("as_text", [False, True])
def test_bytes_and_texts_arrive_as_they_were_whatever_the_protocol_carries(as_text: bool) -> None:
    crossed = cross(Sketch(DATA), as_text=as_text)
    assert {type(array.item()) for array in crossed.values()} == {bytes}  # Triton's library takes no other
    assert crossed["sketch"].item() == (base64.b64encode(DATA) if as_text else DATA)
    assert crossed["title"].item() == "zażółć".encode()
    assert read([Sketch], crossed, "m", as_text=as_text) == Sketch(DATA)


@pytest.mark.parametrize("as_text", [False, True])
def test_base64_text_is_not_encoded_again(as_text: bool) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
    events: list[Event] = [VideoPart(0, 1, 0.5, as_base64(DATA)), FramesPart(pixels, 0, 0.5).as_text()]
    for event in events:
        found = read([type(event)], cross(event, as_text=as_text), "m", as_text=as_text)
        if isinstance(found, VideoPart):
            assert found.data("video_base64") == DATA
        else:
            assert isinstance(found, FramesPart)
            np.testing.assert_array_equal(found.pixels, pixels)


def test_array_without_bytes_is_handed_on_as_it_is() -> None:
    array = np.arange(3)
    assert to_wire_form(array, as_text=True) is array
