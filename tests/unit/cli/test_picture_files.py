"""Files of pictures and of arrays that `slipway generate` writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import PIL.Image
import pytest

from slipway_cli import saving
from slipway_client.results import Assembler
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.protocol.events import Event, Picture, Progress, output_field, read, tensors
from slipway_serving.protocol.requests import Request

EVENTS = (Progress, Picture)


@dataclass(frozen=True)
class Asked(Request):
    """A picture is asked for."""

    model: ClassVar[str] = "painter"
    events: ClassVar[tuple[type[Event], ...]] = EVENTS


@dataclass(frozen=True)
class Described(Event):
    """Event of a family of its own, with a text and bytes."""

    known_by: ClassVar[tuple[str, ...]] = ("caption",)

    caption: Annotated[str, output_field("caption")]
    data: Annotated[bytes, output_field("bytes")]


def picture() -> Picture:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
    return Picture(pixels, 1.5)


def test_picture_crosses_the_wire_also_flat_as_json_carries_it() -> None:
    sent = picture()
    assert (sent.height, sent.width) == (16, 24)
    flat = {name: array.reshape(-1) for name, array in tensors(sent).items()}
    found = read(EVENTS, flat, "painter")
    assert isinstance(found, Picture)
    assert np.array_equal(found.picture, sent.picture)
    assembler = Assembler(Asked(), "painter")
    assert assembler.add(found) is found
    assert assembler.results() == []


def test_picture_is_written_in_the_format_of_the_suffix(tmp_path: Path) -> None:
    assert saving.suffixes(EVENTS) == [".png", ".jpg", ".webp"]
    sent = picture()
    for suffix, kind in ((".png", "PNG"), (".jpg", "JPEG"), (".webp", "WEBP")):
        path = tmp_path / f"out{suffix}"
        assert saving.check_output(path, EVENTS) == ""
        content = saving.write(Asked(), [sent], path)
        assert saving.describe(content) == "a picture, 24x16"
        with PIL.Image.open(path) as written:
            assert (written.format, written.size) == (kind, (24, 16))
            if suffix == ".png":
                assert np.array_equal(np.asarray(written), sent.picture)
    with pytest.raises(InvalidRequest, match=r"must end in \.png or \.jpg or \.webp"):
        saving.check_output(tmp_path / "out.mp4", EVENTS)


def test_stream_without_a_picture_is_an_error_of_the_server(tmp_path: Path) -> None:
    with pytest.raises(Unrecoverable, match="painter: the server must send a picture, got none"):
        saving.write(Asked(), [], tmp_path / "out.png")


def test_arrays_are_written_without_pickles_when_an_event_has_texts(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    assert saving.suffixes((Described,)) == [".npz"]
    saving.write(Asked(), [Described("häuser", bytes((0, 255, 7)))], path)
    with np.load(path, allow_pickle=False) as arrays:
        assert arrays["caption"].reshape(-1).tolist() == ["häuser"]
        assert arrays["data"].tolist() == [0, 255, 7]
