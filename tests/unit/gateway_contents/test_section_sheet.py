"""The picture of a video that arrives in sections: each at its place, in whichever order they come."""

from __future__ import annotations

import numpy as np
import pytest

from slipway_gateway.runs.sections import SectionSheet
from slipway_serving.protocol.events import FramesPart, VideoPart
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.video.delivery import fragment_parts

SIZE, FRAMES, FPS = 32, 9, 16
COLORS = ((200, 30, 30), (30, 200, 30), (30, 30, 200))
GREY = (120, 120, 120)


def section(place: int) -> np.ndarray:
    """Frames of one colour."""
    return np.full((FRAMES, SIZE, SIZE, 3), COLORS[place], np.uint8)


def fragments(place: int) -> list[VideoPart]:
    total = FRAMES * len(COLORS)
    parts = fragment_parts(
        section(place), place * FRAMES, 0, FPS, total, Interruption("test", lambda: False), as_text=False
    )
    return list(parts)


def pixels(place: int) -> list[FramesPart]:
    return [FramesPart(section(place), place * FRAMES, 0.0, frames_total=FRAMES * len(COLORS))]


def shown(sheet: SectionSheet) -> list[tuple[int, ...]]:
    """The colour in the middle of each cell."""
    picture = sheet.picture()
    step = SIZE + 4
    assert picture.shape == (SIZE, len(COLORS) * step - 4, 3)
    return [tuple(int(each) for each in picture[SIZE // 2, x * step + SIZE // 2]) for x in range(len(COLORS))]


@pytest.mark.parametrize("parts", [fragments, pixels])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_each_section_is_at_its_place_when_it_has_arrived(parts: object, order: tuple[int, ...]) -> None:
    sheet = SectionSheet(SIZE, SIZE, FPS)
    expected = [GREY] * len(COLORS)
    for place in order:
        for part in parts(place):  # type: ignore[operator]
            sheet.add(part)
        assert sheet.take_new()
        assert not sheet.take_new()
        expected[place] = COLORS[place]
        np.testing.assert_allclose(shown(sheet), expected, atol=6)


def test_nothing_is_shown_when_the_parts_have_no_place() -> None:
    sheet = SectionSheet(SIZE, SIZE, FPS)
    sheet.add(VideoPart(0, 2, 0.0, b"cut anywhere"))
    assert not sheet.take_new()
    sheet.add(FramesPart(section(0), 0, 0.0, frames_total=FRAMES))
    assert not sheet.take_new(), "a whole video is no section"


def test_section_is_grey_when_its_fragment_is_damaged() -> None:
    sheet = SectionSheet(SIZE, SIZE, FPS)
    for part in fragments(0):
        sheet.add(part)
    sheet.add(
        VideoPart(
            1, None, 0.0, b"\x00\x00\x00\x10moof damaged", first_frame=9, part_frames=9, frames_total=27
        )
    )
    np.testing.assert_allclose(shown(sheet), [COLORS[0], GREY, GREY], atol=6)
