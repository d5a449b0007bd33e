"""Sizes of inputs against the exported ranges of their axes: the rules, without a network."""

from __future__ import annotations

import pytest

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.input_sizes import InputSizes, ranges_text, read_ranges

RANGES = {
    "batch": (1, 2),
    "tokens": (1, 512),
    "frames": (1, 21),
    "height": (2, 8),
    "width": (2, 8),
    "fps": (9, 9),
}
SHAPES: dict[str, tuple[int | str, ...]] = {
    "input_ids": ("batch", "tokens"),
    "attention_mask": ("batch", "tokens"),
    "latents": ("batch", 16, "4*frames - 3", "2*height", "2*width"),
    "patches": ("batch", "height*width + tokens"),
    "rows": ("ceil(height / 4)", "fps"),
}
GOOD = {
    "input_ids": (2, 512),
    "attention_mask": (2, 512),
    "latents": (2, 16, 81, 4, 16),
    "patches": (2, 2 * 8 + 512),
    "rows": (1, 9),
}


def problems(**given: tuple[int, ...]) -> list[str]:
    return InputSizes(SHAPES, RANGES).problems(GOOD | given)


def test_sizes_in_the_range_have_no_problem() -> None:
    assert problems() == []
    assert problems(latents=(2, 16, 1, 16, 4), rows=(2, 9)) == []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"input_ids": (2, 513), "attention_mask": (2, 513), "patches": (2, 16 + 513)},
            "input_ids must have 1 to 512 for tokens, the exported range, got 513",
        ),
        (
            {"input_ids": (2, 0), "attention_mask": (2, 0), "patches": (2, 16)},
            "input_ids must have 1 to 512 for tokens, the exported range, got 0",
        ),
        (
            {"attention_mask": (2, 511)},
            "attention_mask must have 512 for tokens as input_ids has, got 511",
        ),
        (
            {"latents": (2, 16, 85, 4, 16)},
            "latents must have 4*frames - 3 in dimension 2 where frames is 1 to 21, the exported"
            " range, got 85",
        ),
        (
            {"latents": (2, 16, 80, 4, 16)},
            "latents must have 4*frames - 3 in dimension 2 where frames is 1 to 21, the exported"
            " range, got 80",
        ),
        (
            {"latents": (2, 16, 81, 5, 16)},
            "latents must have 2*height in dimension 3 where height is 2 to 8, the exported range, got 5",
        ),
        (
            {"latents": (2, 15, 81, 4, 16)},
            "latents must have shape [-1, 16, -1, -1, -1], got [2, 15, 81, 4, 16]",
        ),
        ({"latents": (2, 16, 81, 4)}, "latents must have shape [-1, 16, -1, -1, -1], got [2, 16, 81, 4]"),
        (
            {"patches": (2, 529)},
            "patches must have 528 for height*width + tokens"
            " (height = 2 of latents, tokens = 512 of input_ids, width = 8 of latents), got 529",
        ),
        ({"rows": (2, 9)}, "rows must have 1 for ceil(height / 4) (height = 2 of latents), got 2"),
        ({"rows": (1, 8)}, "rows must have shape [-1, 9], got [1, 8]"),
    ],
)
def test_broken_rule_names_input_axis_range_and_size(given: dict[str, tuple[int, ...]], problem: str) -> None:
    assert problems(**given) == [problem]


@pytest.mark.parametrize(("size", "is_good"), [(4 + 1, True), (4, False), (64 + 512, True), (577, False)])
def test_composed_size_is_bounded_when_no_input_tells_its_axes(size: int, is_good: bool) -> None:
    sizes = InputSizes({"patches": ("height*width + tokens",)}, RANGES)
    assert (sizes.problems({"patches": (size,)}) == []) is is_good


def test_axis_is_found_when_all_others_of_an_expression_are_known() -> None:
    shapes = {"latents": ("height", "width"), "patches": ("height*width + tokens",)}
    sizes = InputSizes(shapes, RANGES)
    assert sizes.problems({"latents": (2, 8), "patches": (16 + 512,)}) == []
    assert sizes.problems({"latents": (2, 8), "patches": (16 + 513,)}) == [
        "patches must have height*width + tokens in dimension 0 where height is 2 to 8, tokens is 1 to 512,"
        " width is 2 to 8, the exported range, got 529"
    ]


def test_names_that_are_no_expressions_must_only_agree() -> None:
    sizes = InputSizes({"a": ("N/2", ""), "b": ("N/2", "tokens")}, {})
    assert sizes.problems({"a": (10**6, 3), "b": (10**6, 10**6)}) == []
    assert sizes.problems({"a": (5, 3), "b": (4, 1)}) == ["b must have 5 for N/2 as a has, got 4"]


def test_ranges_are_read_as_they_were_written() -> None:
    assert ranges_text({"batch": (1, 2), "tokens": (1, 512)}) == "batch=1:2 tokens=1:512"
    assert read_ranges("m", {"axes": ranges_text(RANGES)}) == RANGES
    assert read_ranges("m", {}) == {}


@pytest.mark.parametrize("text", ["tokens", "tokens=1", "tokens=512:1", "tokens=0:4", "tokens=1:x", "2=1:2"])
def test_ranges_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"m: parameter axes of config\.pbtxt must have entries AXIS=MIN:MAX"
    ):
        read_ranges("m", {"axes": f"batch=1:2 {text}"})
