"""The machinery between request dataclasses and tensors, on a small request of its own."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.fields import BATCH, Array, Rule, fields_of
from slipway_serving.protocol.requests import (
    Request,
    decode,
    decode_turn,
    encode,
    ending_tensors,
    input_fields,
)
from slipway_serving.protocol.turns import Turn


def _rule(must: str = "anything", accepts: Any = lambda _: True) -> Rule:
    return Rule(must, accepts, lambda _: "something else", "a value")


@dataclass(frozen=True)
class Sample(Request):
    model: ClassVar[str] = "sample"

    text: Annotated[str, _rule()]
    number: Annotated[int, _rule("even", lambda n: n % 2 == 0)] = 2
    weight: Annotated[float | None, _rule("below 1", lambda w: not w >= 1)] = None
    flag: Annotated[bool, _rule()] = False


FLOAT32 = st.floats(max_value=0.5, allow_nan=False, width=32)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(TEXT, st.integers(-(2**62), 2**62 - 1), st.none() | FLOAT32, st.booleans())
def test_decode_gives_back_the_request_when_it_was_encoded(
    text: str, half: int, weight: float | None, flag: bool
) -> None:
    request = Sample(text, 2 * half, weight, flag)
    again = decode(Sample, encode(request), "sample")
    assert (again.text, again.number, again.flag) == (text, 2 * half, flag)
    assert again.weight == weight if weight is None else np.float32(again.weight) == np.float32(weight)


@given(st.decimals(-1000, 0, places=3, allow_nan=False))
def test_decode_keeps_the_decimal_when_a_float_has_few_digits(value: Any) -> None:
    request = Sample("x", weight=float(value))
    assert decode(Sample, encode(request), "sample").weight == float(value)


def test_fields_follow_the_dataclass() -> None:
    facts = [(field.name, field.datatype, field.shape, field.optional) for field in fields_of(Sample)]
    assert facts == [
        ("text", "BYTES", (1,), False),
        ("number", "INT64", (1,), True),
        ("weight", "FP32", (1,), True),
        ("flag", "BOOL", (1,), True),
    ]


def test_decode_takes_defaults_when_tensors_are_absent() -> None:
    assert decode(Sample, {"text": np.array([b"x"], np.object_)}, "sample") == Sample("x")


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"text": np.array([b"ab\xff"], np.object_)}, "text must be UTF-8 text, got byte 0xff at offset 2"),
        ({"text": np.array([b"a\0"], np.object_)}, "text must be text without NUL, got one at character 1"),
        ({}, "text must be given, got nothing"),
        ({"number": np.array([1, 2])}, r"number must be a tensor INT64 \[1\], got int64 \[2\]"),
        ({"number": np.array([1], np.int32)}, r"number must be a tensor INT64 \[1\], got int32 \[1\]"),
        ({"number": np.array([3])}, "number must be even, got 3; try something else"),
        ({"weight": np.array([2], np.float32)}, "weight must be below 1, got 2.0"),
        ({"nmber": np.array([2])}, "nmber must be a field of the request"),
    ],
)
def test_decode_names_field_rule_and_value_when_a_tensor_is_bad(tensors: dict[str, Any], text: str) -> None:
    good = {} if text.startswith("text must be given") else {"text": np.array([b"x"], np.object_)}
    with pytest.raises(InvalidRequest, match=f"^here: {text}"):
        decode(Sample, good | tensors, "here")


def test_decode_names_all_fields_when_several_are_bad() -> None:
    tensors = {"number": np.array([3]), "weight": np.array([7], np.float32), "odd": np.array([1])}
    with pytest.raises(InvalidRequest) as caught:
        decode(Sample, tensors, "here")
    for name in ("odd must", "text must", "number must", "weight must"):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"text": 3},
        {"text": None},
        {"text": "half a pair \ud800"},
        {"number": True},
        {"number": 2.0},
        {"number": None},
        {"number": 2**70},
        {"weight": "1"},
        {"flag": 1},
    ],
)
def test_building_a_request_fails_when_a_value_has_another_type(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"^sample: {next(iter(values))} must be"):
        Sample(**{"text": "x", **values})


def test_a_class_is_refused_when_a_field_has_no_tensor_type_or_rule() -> None:
    @dataclass(frozen=True)
    class Listed(Request):
        model: ClassVar[str] = "listed"
        items: Annotated[list, _rule()]  # type: ignore[type-arg]

    @dataclass(frozen=True)
    class Unruled(Request):
        model: ClassVar[str] = "unruled"
        number: int = 1

    for kind in (Listed, Unruled):
        with pytest.raises(TypeError, match="must be Annotated"):
            fields_of(kind)


_PIECE = Array("int16", (BATCH, "samples"), "samples", {BATCH: (1, 1), "samples": (0, 8)}, fix="less")
_NAMES = Array("text", (BATCH, "names"), "names", {BATCH: (1, 1)})


@dataclass(frozen=True)
class Piece(Request):
    model: ClassVar[str] = "talk"

    pcm: Annotated[np.ndarray[Any, np.dtype[np.int16]], _PIECE]


@dataclass(frozen=True)
class Talk(Request):
    model: ClassVar[str] = "talk"
    turn: ClassVar[type[Request] | None] = Piece

    names: Annotated[np.ndarray[Any, np.dtype[np.object_]] | None, _NAMES] = None
    pause_ms: Annotated[int, _rule("0 or more", lambda pause: pause >= 0)] = 5


PCM = np.arange(5, dtype=np.int16)[None]
FIRST, LATER = Turn(1, start=True), Turn(1)


def test_scalar_is_of_a_batch_of_one_beside_arrays_with_a_batch() -> None:
    assert [(field.name, field.shape) for field in input_fields(Talk)] == [
        ("names", (-1, -1)),
        ("pause_ms", (1, 1)),
        ("pcm", (-1, -1)),
    ]
    tensors = encode(Talk(np.array([["a", "b"]], np.object_), 7))
    assert tensors["pause_ms"].tolist() == [[7]]
    assert tensors["names"].tolist() == [[b"a", b"b"]]


def test_turn_gives_what_opens_a_session_at_its_start_only() -> None:
    opening = Talk(np.array([["a", "b"]], np.object_), 7)
    opened, first = decode_turn(Talk, {**encode(opening), **encode(Piece(PCM))}, "here", FIRST)
    assert opened is not None
    assert opened.names is not None
    assert (opened.names.tolist(), opened.pause_ms) == ([["a", "b"]], 7)
    assert np.array_equal(first.pcm, PCM)
    opened, later = decode_turn(Talk, encode(Piece(PCM)), "here", LATER)
    assert opened is None
    assert np.array_equal(later.pcm, PCM)


@pytest.mark.parametrize(
    ("tensors", "turn", "text"),
    [
        (
            {"pcm": PCM, "pause_ms": np.array([[7]])},
            LATER,
            "pause_ms must be given in the first turn of a session",
        ),
        ({"pcm": PCM, "pause_ms": np.array([[-7]])}, FIRST, "pause_ms must be 0 or more, got -7"),
        ({"pcm": PCM, "pause_ms": np.array([7])}, FIRST, r"pause_ms must be a tensor INT64 \[1, 1\]"),
        ({"pause_ms": np.array([[7]])}, FIRST, "pcm must be given, got nothing"),
        ({"pcm": np.zeros((2, 5), np.int16)}, FIRST, r"pcm must have a batch of 1, got shape \[2, 5\]"),
        ({"pcm": np.zeros((1, 9), np.int16)}, LATER, r"pcm must have 0 to 8 samples.*; try less"),
        ({"pcm": PCM, "pmc": PCM}, LATER, "pmc must be a field of the request"),
    ],
)
def test_turn_is_refused_by_name_when_it_breaks_a_rule(
    tensors: dict[str, Any], turn: Turn, text: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^here: {text}"):
        decode_turn(Talk, tensors, "here", turn)


def test_limits_of_the_served_model_stand_before_those_of_the_field() -> None:
    with pytest.raises(InvalidRequest, match=r"pcm must have 1 to 4 samples, got shape \[1, 5\]; try less"):
        decode_turn(Talk, {"pcm": PCM}, "here", LATER, {"samples": range(1, 5)})


def test_request_that_opens_no_session_has_no_turns() -> None:
    with pytest.raises(TypeError, match="must declare the class of its turns"):
        decode_turn(Sample, {}, "here", FIRST)


def test_ending_brings_what_a_batching_model_needs_and_nothing_in_it() -> None:
    tensors = ending_tensors(Talk)
    assert {name: (array.shape, array.dtype) for name, array in tensors.items()} == {
        "pcm": ((1, 0), np.dtype(np.int16))
    }
    assert ending_tensors(Sample) == {}
